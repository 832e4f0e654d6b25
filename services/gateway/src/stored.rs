//! Responses that clients may refer to later: kept in memory, for a while, within bounds of bytes and number.
//!
//! What it is not: durable, or shared between routers. A response that is not there any more is refused by name, never
//! answered as if it had not been referred to. A response belongs to the tenant whose request it answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::{Clock, TenantId, Timestamp};

use crate::request::Memory;

/// Bytes an entry costs beside its text: ids in both maps and the values' own structure, measured as about as much as the
/// text.
const ENTRY_BYTES: usize = 512;

/// A response and what it answered.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) object: Value,
    /// Input items, those of earlier responses included.
    pub(crate) input: Vec<Value>,
}

/// The bounds of what is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredBounds {
    pub(crate) bytes_max: usize,
    pub(crate) responses_max: usize,
    pub(crate) kept_for: Duration,
}

/// All stored responses of this process.
pub(crate) struct ResponseStore {
    bounds: StoredBounds,
    clock: Arc<dyn Clock>,
    shelf: Mutex<Shelf>,
}

/// The responses of one tenant.
pub(crate) struct TenantResponses {
    store: Arc<ResponseStore>,
    tenant: TenantId,
}

type Key = (TenantId, String);

#[derive(Default)]
struct Shelf {
    entries: HashMap<Key, Entry>,
    /// In order of storing; entries that were deleted stay until their turn.
    order: VecDeque<Key>,
    bytes: usize,
}

struct Entry {
    stored: Arc<Stored>,
    bytes: usize,
    until: Timestamp,
}

impl ResponseStore {
    pub(crate) fn new(bounds: StoredBounds, clock: Arc<dyn Clock>) -> Self {
        Self { bounds, clock, shelf: Mutex::default() }
    }

    /// Number and bytes of what is kept.
    pub(crate) fn held(&self) -> (usize, usize) {
        let shelf = self.shelf.lock();
        (shelf.entries.len(), shelf.bytes)
    }

    fn put(&self, key: Key, stored: Stored) {
        let texts = std::iter::once(&stored.object).chain(&stored.input);
        // Counted twice: once as text, once for the structure around it.
        let bytes = ENTRY_BYTES + 2 * texts.map(weight).sum::<usize>();
        if self.bounds.bytes_max < bytes || self.bounds.responses_max == 0 {
            return;
        }
        let now = self.clock.now();
        let until = now.after(self.bounds.kept_for);
        let mut shelf = self.shelf.lock();
        shelf.expire(now);
        while self.bounds.bytes_max < shelf.bytes + bytes
            || self.bounds.responses_max <= shelf.order.len()
        {
            shelf.drop_oldest();
        }
        shelf.bytes += bytes;
        shelf.order.push_back(key.clone());
        let stored = Arc::new(stored);
        let before = shelf.entries.insert(key, Entry { stored, bytes, until });
        assert!(before.is_none(), "ids of responses are unique");
    }

    fn find(&self, key: &Key) -> Option<Arc<Stored>> {
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        shelf.expire(now);
        shelf.entries.get(key).map(|entry| Arc::clone(&entry.stored))
    }

    fn delete(&self, key: &Key) -> bool {
        let mut shelf = self.shelf.lock();
        shelf.forget(key)
    }
}

impl Shelf {
    /// All live equally long, so the oldest end first.
    fn expire(&mut self, now: Timestamp) {
        while let Some(key) = self.order.front() {
            if self.entries.get(key).is_some_and(|entry| now < entry.until) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let key = self.order.pop_front().expect("what is held is in order");
        self.forget(&key);
    }

    fn forget(&mut self, key: &Key) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.bytes -= entry.bytes;
        true
    }
}

impl TenantResponses {
    pub(crate) fn new(store: Arc<ResponseStore>, tenant: TenantId) -> Self {
        Self { store, tenant }
    }

    /// Keeps a response; one that is larger than everything that may be kept is not.
    pub(crate) fn put(&self, id: &str, stored: Stored) {
        self.store.put(self.key(id), stored);
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.store.find(&self.key(id))
    }

    /// Whether it was there.
    pub(crate) fn delete(&self, id: &str) -> bool {
        self.store.delete(&self.key(id))
    }

    fn key(&self, id: &str) -> Key {
        (self.tenant.clone(), id.to_owned())
    }
}

impl Memory for TenantResponses {
    fn items(&self, id: &str) -> Option<Vec<Value>> {
        let stored = self.find(id)?;
        let output = stored.object["output"].as_array().into_iter().flatten();
        Some(stored.input.iter().chain(output).cloned().collect())
    }
}

/// The input items of a stored response as a list object.
pub(crate) fn input_items(id: &str, stored: &Stored) -> Value {
    let item = |(index, item): (usize, &Value)| {
        let mut item = item.clone();
        if item["id"].is_null() {
            item["id"] = format!("item_{index}_{id}").into();
        }
        item
    };
    let data: Vec<Value> = stored.input.iter().enumerate().map(item).collect();
    let (first, last) = (data.first().map(|i| &i["id"]), data.last().map(|i| &i["id"]));
    json!({"object": "list", "first_id": first, "last_id": last, "has_more": false, "data": data})
}

/// Bytes of text in a value.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => 16 + list.iter().map(weight).sum::<usize>(),
        Value::Object(map) => 16 + map.iter().map(|(k, v)| 16 + k.len() + weight(v)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 16,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use shared::{ManualClock, TenantId};

    use super::{ResponseStore, Stored, StoredBounds, TenantResponses};
    use crate::request::Memory;

    fn stored(text: &str) -> Stored {
        let object = json!({"output": [{"type": "message", "content": text}]});
        Stored { object, input: vec![json!({"role": "user"})] }
    }

    fn store(bytes_max: usize, responses_max: usize) -> (Arc<ManualClock>, Arc<ResponseStore>) {
        let clock = Arc::new(ManualClock::new());
        let bounds = StoredBounds { bytes_max, responses_max, kept_for: Duration::from_secs(10) };
        let store = ResponseStore::new(bounds, Arc::clone(&clock) as _);
        (clock, Arc::new(store))
    }

    fn of(store: &Arc<ResponseStore>, tenant: &str) -> TenantResponses {
        TenantResponses::new(Arc::clone(store), TenantId(Arc::from(tenant)))
    }

    #[test]
    fn a_response_is_its_tenants_and_ends_with_its_time() {
        let (clock, store) = store(1 << 20, 10);
        let (ours, theirs) = (of(&store, "a"), of(&store, "b"));
        ours.put("r", stored("x"));
        assert_eq!(ours.items("r").unwrap().len(), 2);
        assert!(theirs.find("r").is_none() && !theirs.delete("r"));
        clock.advance(Duration::from_secs(9));
        assert!(ours.find("r").is_some());
        clock.advance(Duration::from_secs(1));
        assert!(ours.find("r").is_none());
        assert_eq!(store.held(), (0, 0));
    }

    #[test]
    fn bounds_of_number_and_bytes_hold_and_the_oldest_leave() {
        let (_, store) = store(20_000, 3);
        let ours = of(&store, "a");
        for index in 0..10 {
            ours.put(&index.to_string(), stored("x"));
            assert!(store.held().0 <= 3);
        }
        assert!(ours.find("6").is_none() && ours.find("7").is_some());
        assert!(ours.delete("8") && !ours.delete("8"));
        ours.put("big", stored(&"x".repeat(8_000)));
        ours.put("bigger", stored(&"x".repeat(8_000)));
        assert!(store.held().1 <= 20_000 && ours.find("bigger").is_some());
        ours.put("too big", stored(&"x".repeat(20_000)));
        assert!(ours.find("too big").is_none() && ours.find("bigger").is_some());
    }
}
