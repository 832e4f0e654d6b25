//! The token by which etcd knows the user of a connection, and the password that gets it.
//!
//! A connection has the token that it got at its beginning. etcd forgets tokens: after some minutes without a request, when the
//! user's password changes, or when it starts again. Then it refuses a request, which ends the connection, and the next one
//! gets a token of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::client::reason;
use super::{Etcd, v3};
use crate::discovery::ANSWER_MAX;
use v3::auth_client::AuthClient;

/// Under which name a request carries it.
const METADATA: &str = "token";

/// Goes with every request of a connection; none where etcd asks for no user.
#[derive(Clone)]
pub(super) struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert(METADATA, token.clone());
        }
        Ok(request)
    }
}

impl Token {
    /// Says to etcd who asks. Without a user nothing is asked.
    pub(super) async fn get(etcd: &Etcd, channel: Channel) -> Result<Self, String> {
        let name = etcd.config.user.clone();
        if name.is_empty() {
            return Ok(Self(None));
        }
        let file = etcd.config.password_file.clone();
        let password = spawn_blocking(move || password(&file)).await;
        let password = password.map_err(|error| error.to_string())??;
        let request = v3::AuthenticateRequest { name: name.clone(), password };
        let mut client = AuthClient::new(channel);
        let answer = timeout(ANSWER_MAX, client.authenticate(request)).await;
        let answer = answer.map_err(|_| format!("no answer within {ANSWER_MAX:?}"))?;
        let answer = answer
            .map_err(|status| format!("etcd does not take the user {name}: {}", reason(&status)))?;
        let token = MetadataValue::try_from(answer.into_inner().token);
        let mut token = token.map_err(|_| "etcd gave a token that cannot be sent".to_owned())?;
        token.set_sensitive(true);
        Ok(Self(Some(token)))
    }
}

/// Read anew for each connection: it may be replaced.
fn password(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let unread = |error| format!("{shown} cannot be read: {error}");
    let mode = fs::metadata(file).map_err(unread)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!("{shown} can be read by others; run chmod 600 on it"));
    }
    let text = fs::read_to_string(file).map_err(unread)?;
    // What stands in the file must not get into a log, so the error does not quote it.
    let line = text.strip_suffix('\n').unwrap_or(&text);
    if line.is_empty() || line.contains('\n') {
        return Err(format!("{shown} holds no password: write one line"));
    }
    Ok(line.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::password;

    #[test]
    fn a_password_is_one_line_of_a_private_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cases = [
            ("hush now\n", 0o600, Ok("hush now")),
            ("hush", 0o400, Ok("hush")),
            ("hush", 0o640, Err("chmod")),
            ("\n", 0o600, Err("one line")),
            ("hush\nnow\n", 0o600, Err("one line")),
        ];
        for (text, mode, expected) in cases {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(file.path(), text).unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            match (password(file.path()), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected),
                (Err(error), Err(word)) => {
                    assert!(error.contains(word) && !error.contains("hush"), "{error}");
                }
                (read, _) => panic!("{text:?} with mode {mode:o}: {read:?}"),
            }
        }
        assert!(password("/nowhere/at-all".as_ref()).unwrap_err().contains("/nowhere/at-all"));
    }
}
