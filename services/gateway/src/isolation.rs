//! What a client says about whose cache a request may share, whatever its protocol.
//!
//! `user_id` and `cache_salt` go into the root of all block names: requests that differ in either share nothing, and a client
//! that knows neither cannot find out what was asked. `prompt_cache_key` separates nothing; it only keeps a conversation on
//! one worker.

use serde_json::{Map, Value};
use shared::{SessionKey, TenantId};

use crate::error::ApiError;

/// Longest value of each. Source: DeepSeek's API for `user_id`.
const BYTES_MAX: usize = 512;
const UUID_BYTES: usize = 36;

/// Separations within a tenant, and the client's name for a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Isolation {
    /// The end user. `user_id` of chats, `metadata.user_id` of Messages.
    pub(crate) user_id: Option<String>,
    /// Whatever a client wants to be apart by.
    pub(crate) cache_salt: Option<String>,
    /// A hint for routing.
    pub(crate) cache_key: Option<String>,
}

impl Isolation {
    /// Reads a request's fields; `user_id` stands at the path `user_at`, for example `["metadata", "user_id"]`.
    ///
    /// # Errors
    /// 400 that names the first field that is no string or too long.
    pub(crate) fn read(body: &Map<String, Value>, user_at: &[&str]) -> Result<Self, ApiError> {
        let (user_id, session) = text_at(body, user_at)?.map(apart).unwrap_or_default();
        Ok(Self {
            user_id,
            cache_salt: text_at(body, &["cache_salt"])?,
            cache_key: text_at(body, &["prompt_cache_key"])?.or(session),
        })
    }

    /// What is mixed into the root of block names: empty when nothing separates, different for different separations.
    pub(crate) fn salt(&self) -> String {
        let part = |mark: char, text: &Option<String>| match text {
            None => String::new(),
            // With its length, so that no text can pass for two.
            Some(text) => format!("{mark}{}:{text}", text.len()),
        };
        format!("{}{}", part('u', &self.user_id), part('s', &self.cache_salt))
    }

    /// The session that the routing hint stands for.
    pub(crate) fn session(&self, tenant: &TenantId) -> Option<SessionKey> {
        self.cache_key.as_ref().map(|key| SessionKey::of(tenant, key.as_bytes()))
    }
}

/// The user in a user's id, and the conversation if the id holds one. Claude Code's do, in two forms: an object with a
/// `session_id`, and `user_.._session_` before a UUID. With it no conversation of a user would share a prefix with another,
/// and their first 20,000 tokens are the same.
fn apart(user_id: String) -> (Option<String>, Option<String>) {
    if let Ok(mut members) = serde_json::from_str::<Map<String, Value>>(&user_id)
        && let Some(Value::String(session)) = members.remove("session_id")
    {
        let user = (!members.is_empty()).then(|| Value::Object(members).to_string());
        return (user, Some(session));
    }
    match user_id.rsplit_once("_session_") {
        Some((user, session)) if user.starts_with("user_") && session.len() == UUID_BYTES => {
            (Some(user.to_owned()), Some(session.to_owned()))
        }
        _ => (Some(user_id), None),
    }
}

/// Absent, null and empty count alike.
fn text_at(body: &Map<String, Value>, path: &[&str]) -> Result<Option<String>, ApiError> {
    let Some((first, rest)) = path.split_first() else { return Ok(None) };
    let found = rest.iter().try_fold(body.get(*first), |value, name| match value {
        Some(Value::Object(inner)) => Some(inner.get(*name)),
        _ => None,
    });
    match found.flatten() {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= BYTES_MAX => {
            Ok(Some(text.clone()).filter(|text| !text.is_empty()))
        }
        Some(_) => {
            let name = path.join(".");
            let message = format!("{name} must be a string of at most {BYTES_MAX} bytes");
            Err(ApiError::invalid(Some(name), message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use shared::{SessionKey, TenantId};

    use super::Isolation;
    use crate::error::ApiError;

    fn read(body: &Value, user_at: &[&str]) -> Result<Isolation, ApiError> {
        Isolation::read(body.as_object().unwrap(), user_at)
    }

    #[test]
    fn fields_are_read_where_their_protocol_has_them() {
        let body = json!({"user_id": "u", "metadata": {"user_id": "m"}, "cache_salt": "s", "prompt_cache_key": "k"});
        let chat = read(&body, &["user_id"]).unwrap();
        assert_eq!(chat.user_id.as_deref(), Some("u"));
        assert_eq!(chat.cache_salt.as_deref(), Some("s"));
        assert_eq!(chat.cache_key.as_deref(), Some("k"));
        let messages = read(&body, &["metadata", "user_id"]).unwrap();
        assert_eq!(messages.user_id.as_deref(), Some("m"));
        for nothing in
            [json!({}), json!({"user_id": null, "cache_salt": ""}), json!({"metadata": 5})]
        {
            for path in [["user_id"].as_slice(), &["metadata", "user_id"]] {
                assert_eq!(read(&nothing, path).unwrap(), Isolation::default());
            }
        }
    }

    #[test]
    fn what_is_no_short_string_is_refused_by_its_name() {
        let long = "x".repeat(513);
        let cases = [
            (json!({"user_id": 5}), "user_id"),
            (json!({"user_id": long}), "user_id"),
            (json!({"cache_salt": ["a"]}), "cache_salt"),
            (json!({"prompt_cache_key": {}}), "prompt_cache_key"),
        ];
        for (body, name) in cases {
            let error = read(&body, &["user_id"]).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)));
        }
        assert!(read(&json!({"user_id": "x".repeat(512)}), &["user_id"]).is_ok());
    }

    #[test]
    fn different_separations_have_different_salts() {
        let of = |body: Value| read(&body, &["user_id"]).unwrap().salt();
        assert_eq!(of(json!({})), "");
        assert_eq!(of(json!({"prompt_cache_key": "k"})), "", "a hint separates nothing");
        let salts = [
            of(json!({"user_id": "a"})),
            of(json!({"user_id": "b"})),
            of(json!({"cache_salt": "a"})),
            of(json!({"user_id": "a", "cache_salt": "a"})),
            of(json!({"user_id": "as1:a"})),
        ];
        for (index, salt) in salts.iter().enumerate() {
            assert!(!salts[..index].contains(salt), "{salts:?}");
        }
    }

    #[test]
    fn a_conversation_within_a_users_id_is_a_hint_and_separates_nothing() {
        const UUID: &str = "8d5f9d11-d359-4f03-a5bf-5746d7da851c";
        let object = json!({"device_id": "d", "account_uuid": "", "session_id": UUID}).to_string();
        let cases = [
            (object, Some(r#"{"device_id":"d","account_uuid":""}"#), Some(UUID)),
            (json!({"session_id": UUID}).to_string(), None, Some(UUID)),
            (r#"{"device_id":"d"}"#.to_owned(), Some(r#"{"device_id":"d"}"#), None),
            (format!("user_a_account__session_{UUID}"), Some("user_a_account_"), Some(UUID)),
            ("user_a_session_b".to_owned(), Some("user_a_session_b"), None),
            (format!("b_session_{UUID}"), Some(&format!("b_session_{UUID}")), None),
        ];
        for (user_id, user, session) in cases {
            let read = read(&json!({"user_id": user_id}), &["user_id"]).unwrap();
            assert_eq!((read.user_id.as_deref(), read.cache_key.as_deref()), (user, session));
        }
        let both =
            json!({"user_id": json!({"session_id": UUID}).to_string(), "prompt_cache_key": "k"});
        assert_eq!(read(&both, &["user_id"]).unwrap().cache_key.as_deref(), Some("k"));
    }

    #[test]
    fn a_hint_is_a_session_of_its_tenant() {
        let isolation = Isolation { cache_key: Some("k".to_owned()), ..Isolation::default() };
        let tenant = TenantId("acme".into());
        assert_eq!(isolation.session(&tenant), Some(SessionKey::of(&tenant, b"k")));
        assert_eq!(Isolation::default().session(&tenant), None);
    }
}
