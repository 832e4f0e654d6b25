//! Responses that clients may refer to later: kept in memory, for a while, within bounds of bytes and number.
//!
//! What it is not: durable, or shared between routers. A response that is not there any more is refused by name, never
//! answered as if it had not been referred to. A response belongs to the tenant whose request it answered, and leaves before its
//! time when its tenant keeps most. Those that are being made while nobody waits for them (`running`) are told beside the others, and are kept like them once they ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use shared::{Clock, TenantId, Timestamp};

use crate::request::Memory;
use running::Running;

mod pages;
mod running;

pub(crate) use pages::{Page, page};
pub(crate) use running::{Cancelled, Unfinished};

/// Bytes an entry costs beside its text: ids in both maps and the values' own structure, measured as about as much as the
/// text.
const ENTRY_BYTES: usize = 512;
/// The same for each item of its output, which can be found by its id.
const ITEM_BYTES: usize = 256;

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
    /// Responses that are being made while nobody waits for them.
    pub(crate) running_max: usize,
    /// Bytes that the items which one request refers to may have together.
    pub(crate) recalled_bytes_max: usize,
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
    tenancy: Tenancy,
}

/// Whether others keep responses here as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenancy {
    /// There is one tenant.
    Sole,
    /// There are several; none gets all that can run in the background.
    Shared,
}

type Key = (TenantId, String);

#[derive(Default)]
struct Shelf {
    /// With their places in the order.
    entries: HashMap<Key, (u64, Entry)>,
    /// In order of storing.
    order: BTreeMap<u64, Key>,
    /// The place in the order that the next one gets.
    next_place: u64,
    /// What each tenant has here. None of them has nothing.
    tenants: HashMap<TenantId, Held>,
    bytes: usize,
    /// Which response has the item of this id in its output.
    items: HashMap<Key, String>,
    running: HashMap<Key, Running>,
}

struct Entry {
    stored: Arc<Stored>,
    bytes: usize,
    until: Timestamp,
}

/// What one tenant has on the shelf.
#[derive(Default)]
struct Held {
    bytes: usize,
    /// Where its responses stand in the order.
    places: BTreeSet<u64>,
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
        let entry = self.entry(stored);
        self.shelf.lock().insert(key, entry, &self.bounds, self.clock.now());
    }

    fn entry(&self, stored: Stored) -> Entry {
        let texts = std::iter::once(&stored.object).chain(&stored.input);
        // Counted twice: once as text, once for the structure around it.
        let items = item_ids(&stored).count() * ITEM_BYTES;
        let bytes = ENTRY_BYTES + items + 2 * texts.map(weight).sum::<usize>();
        let until = self.clock.now().after(self.bounds.kept_for);
        Entry { stored: Arc::new(stored), bytes, until }
    }

    fn find(&self, key: &Key) -> Option<Arc<Stored>> {
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        shelf.expire(now);
        shelf.entries.get(key).map(|(_, entry)| Arc::clone(&entry.stored))
    }

    /// An item by its id: of the output of a response, or as the list of its input names it.
    fn find_item(&self, key: &Key) -> Option<Value> {
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        shelf.expire(now);
        let (tenant, id) = key;
        if let Some(owner) = shelf.items.get(key) {
            let (_, entry) = shelf.entries.get(&(tenant.clone(), owner.clone()))?;
            let mut items = entry.stored.object["output"].as_array()?.iter();
            return items.find(|item| item["id"] == **id).cloned();
        }
        let (owner, index) = pages::input_of(id)?;
        let (_, entry) = shelf.entries.get(&(tenant.clone(), owner.to_owned()))?;
        entry.stored.input.get(index).cloned()
    }

    fn delete(&self, key: &Key) -> bool {
        let mut shelf = self.shelf.lock();
        let was_running = shelf.running.remove(key).map(Running::stop).is_some();
        shelf.forget(key) || was_running
    }
}

impl Shelf {
    /// One that is larger than everything that may be kept is not.
    fn insert(&mut self, key: Key, entry: Entry, bounds: &StoredBounds, now: Timestamp) {
        if bounds.bytes_max < entry.bytes || bounds.responses_max == 0 {
            return;
        }
        self.expire(now);
        while bounds.bytes_max < self.bytes + entry.bytes {
            let own = entry.bytes;
            self.make_room(|tenant, held| held.bytes + if *tenant == key.0 { own } else { 0 });
        }
        while bounds.responses_max <= self.entries.len() {
            self.make_room(|tenant, held| held.places.len() + usize::from(*tenant == key.0));
        }
        let place = self.next_place;
        self.next_place += 1;
        self.bytes += entry.bytes;
        let held = self.tenants.entry(key.0.clone()).or_default();
        held.bytes += entry.bytes;
        held.places.insert(place);
        self.order.insert(place, key.clone());
        for id in item_ids(&entry.stored) {
            self.items.insert((key.0.clone(), id.to_owned()), key.1.clone());
        }
        let before = self.entries.insert(key, (place, entry));
        assert!(before.is_none(), "ids of responses are unique");
    }

    /// All live equally long, so the oldest end first.
    fn expire(&mut self, now: Timestamp) {
        while let Some(key) = self.order.first_key_value().map(|(_, key)| key.clone()) {
            if self.entries.get(&key).is_some_and(|(_, entry)| now < entry.until) {
                return;
            }
            self.forget(&key);
        }
    }

    /// Drops the oldest response of the tenant that has most, so that nobody's leave because somebody else stores much. Looks at
    /// all tenants that have any; of two with as much, at the one whose oldest is older.
    fn make_room(&mut self, share: impl Fn(&TenantId, &Held) -> usize) {
        let most = self.tenants.iter().filter_map(|(tenant, held)| {
            let oldest = *held.places.first()?;
            Some((share(tenant, held), Reverse(oldest)))
        });
        let (_, Reverse(oldest)) = most.max().expect("what takes the room is some tenant's");
        let key = self.order[&oldest].clone();
        self.forget(&key);
    }

    fn forget(&mut self, key: &Key) -> bool {
        let Some((place, entry)) = self.entries.remove(key) else { return false };
        self.bytes -= entry.bytes;
        self.order.remove(&place);
        if let Some(held) = self.tenants.get_mut(&key.0) {
            held.bytes -= entry.bytes;
            held.places.remove(&place);
            if held.places.is_empty() {
                self.tenants.remove(&key.0);
            }
        }
        for id in item_ids(&entry.stored) {
            self.items.remove(&(key.0.clone(), id.to_owned()));
        }
        true
    }
}

impl TenantResponses {
    pub(crate) fn new(store: Arc<ResponseStore>, tenant: TenantId, tenancy: Tenancy) -> Self {
        Self { store, tenant, tenancy }
    }

    /// Keeps a response; one that is larger than everything that may be kept is not.
    pub(crate) fn put(&self, id: &str, stored: Stored) {
        self.store.put(self.key(id), stored);
    }

    /// A response, also one that is still being made.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        let key = self.key(id);
        self.store.running(&key).or_else(|| self.store.find(&key))
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
        let stored = self.store.find(&self.key(id))?;
        let output = stored.object["output"].as_array().into_iter().flatten();
        Some(stored.input.iter().chain(output).cloned().collect())
    }

    fn item(&self, id: &str) -> Option<Value> {
        self.store.find_item(&self.key(id))
    }

    fn recalled_bytes_max(&self) -> usize {
        self.store.bounds.recalled_bytes_max
    }
}

/// The ids of the items of a response's output.
fn item_ids(stored: &Stored) -> impl Iterator<Item = &str> {
    let items = stored.object["output"].as_array().into_iter().flatten();
    items.filter_map(|item| item["id"].as_str())
}

/// Bytes of text in a value, and what stands for the structure around it.
pub(crate) fn weight(value: &Value) -> usize {
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

    use super::{ResponseStore, Stored, StoredBounds, Tenancy, TenantResponses};
    use crate::request::Memory;

    fn stored(text: &str) -> Stored {
        let object = json!({"output": [{"type": "message", "content": text}]});
        Stored { object, input: vec![json!({"role": "user"})] }
    }

    fn store(bytes_max: usize, responses_max: usize) -> (Arc<ManualClock>, Arc<ResponseStore>) {
        let clock = Arc::new(ManualClock::new());
        let kept_for = Duration::from_secs(10);
        let (running_max, recalled_bytes_max) = (1, 1 << 20);
        let bounds =
            StoredBounds { bytes_max, responses_max, kept_for, running_max, recalled_bytes_max };
        let store = ResponseStore::new(bounds, Arc::clone(&clock) as _);
        (clock, Arc::new(store))
    }

    fn of(store: &Arc<ResponseStore>, tenant: &str) -> TenantResponses {
        TenantResponses::new(Arc::clone(store), TenantId(Arc::from(tenant)), Tenancy::Shared)
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
    fn an_item_is_found_by_its_id_as_long_as_its_response_is() {
        let (_, store) = store(1 << 20, 2);
        let (ours, theirs) = (of(&store, "a"), of(&store, "b"));
        let output = json!([{"id": "msg_1", "content": "x"}, {"id": "msg_2", "content": "y"}]);
        let input = vec![json!({"role": "user"}), json!({"role": "system"})];
        ours.put("resp_1", Stored { object: json!({"output": output}), input });
        assert_eq!(ours.item("msg_2").unwrap()["content"], "y");
        assert_eq!(ours.item("item_1_resp_1").unwrap()["role"], "system");
        for unknown in ["msg_3", "item_2_resp_1", "item_x_resp_1", "item_1", "item_0_resp_2", ""] {
            assert!(ours.item(unknown).is_none(), "{unknown}");
        }
        assert!(theirs.item("msg_2").is_none());
        ours.put("2", stored("x"));
        ours.put("3", stored("x"));
        assert!(ours.item("msg_2").is_none() && ours.item("item_1_resp_1").is_none());
        assert!(store.shelf.lock().items.is_empty());
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

    #[test]
    fn who_keeps_most_makes_room() {
        let (clock, store) = store(40_000, 6);
        let (ours, theirs) = (of(&store, "a"), of(&store, "b"));
        // By bytes: theirs are older and fewer.
        theirs.put("t", stored(&"x".repeat(2_000)));
        for index in 0..9 {
            ours.put(&format!("big {index}"), stored(&"x".repeat(8_000)));
            assert!(theirs.find("t").is_some() && store.held().1 <= 40_000);
        }
        // By number.
        for index in 0..9 {
            ours.put(&index.to_string(), stored("x"));
            assert!(theirs.find("t").is_some() && store.held().0 <= 6);
        }
        // The one that is to be kept counts.
        theirs.put("huge", stored(&"x".repeat(17_000)));
        assert!(theirs.find("huge").is_some() && theirs.find("t").is_none());
        assert!(ours.find("8").is_some(), "others keep what they have");
        clock.advance(Duration::from_secs(10));
        assert!(theirs.find("huge").is_none() && store.held() == (0, 0));
        let shelf = store.shelf.lock();
        assert!(shelf.order.is_empty() && shelf.tenants.is_empty());
    }
}
