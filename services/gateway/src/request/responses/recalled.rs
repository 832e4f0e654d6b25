//! Items of stored responses that a request refers to.
//!
//! A reference is short and what it refers to may be long, so together they are bounded like the body that could have sent them.

use serde_json::Value;

use crate::error::ApiError;
use crate::request::Memory;
use crate::request::fields::wrong;
use crate::stored::weight;

/// What one request recalls.
pub(super) struct Recalled<'a> {
    memory: &'a dyn Memory,
    /// Bytes of items that it may still recall.
    bytes_left: usize,
}

impl<'a> Recalled<'a> {
    pub(super) fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, bytes_left: memory.recalled_bytes_max() }
    }

    /// Input and output items of the response that a request follows.
    ///
    /// # Errors
    /// When it is not stored (any more), or too long.
    pub(super) fn response(&mut self, id: &str) -> Result<Vec<Value>, ApiError> {
        let name = "previous_response_id";
        let items = self.memory.items(id).ok_or_else(|| {
            let message = format!(
                "the response {id:?} is not stored here (any more); send its input and output as items"
            );
            let error = ApiError::invalid(Some(name.into()), message);
            ApiError { code: "previous_response_not_found", ..error }
        })?;
        items.iter().try_for_each(|item| self.take(item, name))?;
        Ok(items)
    }

    /// The item that a reference names; any other item is itself.
    ///
    /// # Errors
    /// When the item is not stored (any more), or too much is referred to.
    pub(super) fn resolved(&mut self, item: Value, place: &str) -> Result<Value, ApiError> {
        // The type may be left out where there is nothing but an id.
        let bare = item["type"].is_null() && item.as_object().is_some_and(|map| map.len() == 1);
        if item["type"] != "item_reference" && !(bare && item["id"].is_string()) {
            return Ok(item);
        }
        let id =
            item["id"].as_str().ok_or_else(|| wrong(place, "a reference with the item's id"))?;
        let item = self.memory.item(id).ok_or_else(|| {
            let message = format!(
                "{place} refers to the item {id:?}, which is not stored here (any more); send the item itself"
            );
            let error = ApiError::not_found("item_not_found", message);
            ApiError { param: Some(place.to_owned()), ..error }
        })?;
        self.take(&item, "input")?;
        Ok(item)
    }

    fn take(&mut self, item: &Value, name: &str) -> Result<(), ApiError> {
        match self.bytes_left.checked_sub(weight(item)) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => {
                let bytes_max = self.memory.recalled_bytes_max();
                let message = format!(
                    "the stored items that the request refers to have more than {bytes_max} bytes; refer to fewer or shorter ones"
                );
                Err(ApiError::invalid(Some(name.to_owned()), message))
            }
        }
    }
}
