//! The list of models, in OpenAI's and in Anthropic's shape.

use serde::Serialize;
use serde_json::{Value, json};

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    context_length: u32,
    /// vLLM's name for the same.
    max_model_len: u32,
}

/// The models `names`.
pub(crate) fn model_list(names: &[String], created: u64, context_length: u32) -> Vec<u8> {
    let data = names.iter().map(|id| model_object(id, created, context_length)).collect();
    super::json(&ModelList { object: "list", data })
}

/// One model.
pub(crate) fn model(id: &str, created: u64, context_length: u32) -> Vec<u8> {
    super::json(&model_object(id, created, context_length))
}

fn model_object(id: &str, created: u64, context_length: u32) -> Model<'_> {
    Model {
        id,
        object: "model",
        created,
        owned_by: "kvasir",
        context_length,
        max_model_len: context_length,
    }
}

/// The models `names` as Anthropic's clients read them: one page.
pub(crate) fn anthropic_models(names: &[String], created: u64) -> Vec<u8> {
    let data: Vec<Value> = names.iter().map(|id| anthropic_object(id, created)).collect();
    let list = json!({
        "data": data,
        "has_more": false,
        "first_id": names.first(),
        "last_id": names.last(),
    });
    super::json(&list)
}

/// One model as Anthropic's clients read it.
pub(crate) fn anthropic_model(id: &str, created: u64) -> Vec<u8> {
    super::json(&anthropic_object(id, created))
}

fn anthropic_object(id: &str, created: u64) -> Value {
    json!({"type": "model", "id": id, "display_name": id, "created_at": date(created)})
}

/// Seconds since 1970 as RFC 3339 has them, in UTC. Days to dates: Howard Hinnant, "chrono-compatible low-level date
/// algorithms".
pub(crate) fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
