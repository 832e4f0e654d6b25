//! Lists of items, page by page, as OpenAI's API has them.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::Stored;
use crate::error::ApiError;

/// Items of a page. Source: OpenAI's `limit`.
const ITEMS_DEFAULT: usize = 20;
const ITEMS_MAX: usize = 100;

/// Which part of a list is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    limit: usize,
    ascending: bool,
    /// Behind the item of this id.
    after: Option<String>,
}

impl Page {
    /// Reads `limit`, `order` and `after`; other members change nothing.
    ///
    /// # Errors
    /// The member that is out of range.
    pub(crate) fn read(query: &HashMap<String, String>) -> Result<Self, ApiError> {
        let wrong = |name: &str, wanted: &str| {
            ApiError::invalid(Some(name.to_owned()), format!("{name} must be {wanted}"))
        };
        let limit = match query.get("limit") {
            None => ITEMS_DEFAULT,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=ITEMS_MAX).contains(limit))
                .ok_or_else(|| wrong("limit", "an integer, 1 to 100"))?,
        };
        let ascending = match query.get("order").map(String::as_str) {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(wrong("order", "asc or desc")),
        };
        Ok(Self { limit, ascending, after: query.get("after").cloned() })
    }
}

/// A page of the items that a response answered.
///
/// # Errors
/// When the page is to begin behind an item that is not there.
pub(crate) fn page(id: &str, stored: &Stored, page: &Page) -> Result<Value, ApiError> {
    let item = |(index, item): (usize, &Value)| {
        let mut item = item.clone();
        if item["id"].is_null() {
            item["id"] = format!("item_{index}_{id}").into();
        }
        item
    };
    let mut items: Vec<Value> = stored.input.iter().enumerate().map(item).collect();
    if !page.ascending {
        items.reverse();
    }
    if let Some(after) = &page.after {
        let place = items.iter().position(|item| item["id"] == **after).ok_or_else(|| {
            let message = format!("after names {after:?}, which is no item of this response");
            ApiError::invalid(Some("after".into()), message)
        })?;
        items.drain(..=place);
    }
    let has_more = page.limit < items.len();
    items.truncate(page.limit);
    let (first, last) = (items.first().map(|i| &i["id"]), items.last().map(|i| &i["id"]));
    Ok(json!({"object": "list", "first_id": first, "last_id": last, "has_more": has_more,
        "data": items}))
}

/// The response and the place of the input item that a page gave this id.
pub(super) fn input_of(id: &str) -> Option<(&str, usize)> {
    let (index, owner) = id.strip_prefix("item_")?.split_once('_')?;
    Some((owner, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::{Page, page};
    use crate::stored::Stored;

    fn query(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn ids(pairs: &[(&str, &str)]) -> (Vec<Value>, bool) {
        let input = (0..25).map(|index| json!({"index": index})).collect();
        let stored = Stored { object: Value::Null, input };
        let page = page("resp_1", &stored, &Page::read(&query(pairs)).unwrap()).unwrap();
        let data = page["data"].as_array().unwrap();
        assert_eq!(page["first_id"], data.first().map_or(Value::Null, |item| item["id"].clone()));
        (data.iter().map(|item| item["index"].clone()).collect(), page["has_more"] == true)
    }

    #[test]
    fn pages_are_the_newest_first_and_follow_each_other() {
        let (first, more) = ids(&[]);
        assert_eq!((first.len(), &first[0], more), (20, &json!(24), true));
        let (rest, more) = ids(&[("after", "item_5_resp_1")]);
        assert_eq!((rest, more), ((0..5).rev().map(Value::from).collect(), false));
        let (two, more) = ids(&[("order", "asc"), ("limit", "2"), ("after", "item_3_resp_1")]);
        assert_eq!((two, more), (vec![json!(4), json!(5)], true));
        assert_eq!(ids(&[("order", "asc"), ("after", "item_24_resp_1")]), (vec![], false));
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (name, value) in [("limit", "0"), ("limit", "101"), ("limit", "x"), ("order", "up")] {
            let refused = Page::read(&query(&[(name, value)])).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(name));
        }
        let stored = Stored { object: Value::Null, input: Vec::new() };
        let asked = Page::read(&query(&[("after", "x")])).unwrap();
        assert_eq!(page("r", &stored, &asked).unwrap_err().param.as_deref(), Some("after"));
    }
}
