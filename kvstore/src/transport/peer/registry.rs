//! The pools of this process that may be read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::RwLock;
use shared::RegionId;

use crate::memory::SharedMemory;
use crate::pool::Pool;
use crate::transport::RegisterError;

/// Regions by their id. Bounded by the pools of the process.
#[derive(Default)]
pub(in crate::transport) struct Registry {
    regions: RwLock<Regions>,
}

#[derive(Default)]
struct Regions {
    served: HashMap<RegionId, Served>,
    registrations: u64,
}

/// One region.
#[derive(Clone)]
pub(in crate::transport) struct Served {
    pub(in crate::transport) pool: Pool,
    /// The segment its slots lie in, if other processes can map it.
    pub(in crate::transport) memory: Option<Arc<SharedMemory>>,
    /// Another number for every registration: tells a segment from its successor under the same region.
    pub(in crate::transport) registration: u64,
}

impl Served {
    fn shut(&self) {
        if let Some(memory) = &self.memory {
            memory.open(false);
        }
    }
}

impl Registry {
    pub(super) fn register(
        &self,
        pool: &Pool,
        memory: Option<Arc<SharedMemory>>,
    ) -> Result<(), RegisterError> {
        let region = pool.config().region;
        let mut regions = self.regions.write();
        regions.registrations += 1;
        let registration = regions.registrations;
        match regions.served.entry(region) {
            Entry::Occupied(_) => Err(RegisterError { region }),
            Entry::Vacant(place) => {
                if let Some(memory) = &memory {
                    memory.open(true);
                }
                place.insert(Served { pool: pool.clone(), memory, registration });
                Ok(())
            }
        }
    }

    pub(super) fn unregister(&self, region: RegionId) -> bool {
        let served = self.regions.write().served.remove(&region);
        served.inspect(Served::shut).is_some()
    }

    /// The end: those who have segments mapped read them no longer.
    pub(super) fn shut(&self) {
        self.regions.read().served.values().for_each(Served::shut);
    }

    pub(in crate::transport) fn served(&self, region: RegionId) -> Option<Served> {
        self.regions.read().served.get(&region).cloned()
    }
}
