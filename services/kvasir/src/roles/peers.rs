//! The other members, as this process is linked to them: who is there, and how to call and read them.
//!
//! Invariants: one link per member of the wanted roles that the configuration names, never one to this process itself; a
//! member whose entry changed gets a new link; a member is found only while its link is ready.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvstore::{Peer, PeerDirectory};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use shared::{
    BlockStore, Clock, Decode, DecodeDirectory, Prefill, PrefillDirectory, RegionId, WorkerId,
    WorkerRank,
};
use tokio::runtime::Handle;

use super::base::{Base, shown};
use super::stores::StoreNode;
use crate::config::{ClusterConfig, MemberConfig};
use crate::identity::{Identity, MemberRole};
use crate::lanes::Lanes;
use crate::wire::{
    Facts, Link, LinkLimits, LinkOptions, LinkState, MemberAddress, RemoteDecode, RemotePrefill,
    RemoteStore,
};

/// Something that lives as long as a link, such as the task that listens to it.
pub(super) type Companion = Box<dyn Any + Send + Sync>;
/// Makes the companion of a new link.
pub(super) type OnLink = Box<dyn Fn(&Arc<Link>, &MemberConfig) -> Companion + Send + Sync>;

/// Hears which members are about to end now, all of them each time.
pub(super) type OnEnding = Box<dyn Fn(&BTreeSet<WorkerRank>) + Send + Sync>;

/// See the module's documentation.
pub(super) struct Peers {
    me: MemberConfig,
    roles: &'static [MemberRole],
    facts: Facts,
    identity: Arc<Identity>,
    runtime: Handle,
    lanes: Lanes,
    clock: Arc<dyn Clock>,
    on_link: Mutex<Option<OnLink>>,
    on_ending: Mutex<Option<OnEnding>>,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    linked: BTreeMap<WorkerId, Entry>,
    /// All members that can be read from, linked or not.
    readable: BTreeMap<WorkerId, Peer>,
}

struct Entry {
    /// Dropped before the link.
    companion: Option<Companion>,
    config: MemberConfig,
    link: Arc<Link>,
    remote: Remote,
}

#[derive(Clone)]
enum Remote {
    Decode(Arc<RemoteDecode>),
    Prefill(Arc<RemotePrefill>),
    Store(Arc<RemoteStore>),
    /// A router is not called.
    Nothing,
}

impl Peers {
    /// `lanes` are the threads that call members, for connections of their own.
    pub(super) fn new(
        base: &Base,
        roles: &'static [MemberRole],
        runtime: Handle,
        lanes: Lanes,
    ) -> Self {
        Self {
            me: base.me.clone(),
            roles,
            facts: base.facts.clone(),
            identity: Arc::clone(&base.identity),
            runtime,
            lanes,
            clock: Arc::clone(&base.clock),
            on_link: Mutex::new(None),
            on_ending: Mutex::new(None),
            table: RwLock::default(),
        }
    }

    /// From now on every link gets a companion; those that are there already, too.
    pub(super) fn accompany(&self, on_link: OnLink) {
        let mut table = self.table.write();
        for entry in table.linked.values_mut() {
            entry.companion = Some(on_link(&entry.link, &entry.config));
        }
        *self.on_link.lock() = Some(on_link);
    }

    /// From now on it is told who is about to end. Must not block.
    pub(super) fn hear_ending(&self, on_ending: OnEnding) {
        *self.on_ending.lock() = Some(on_ending);
    }

    /// Discovery says that these members are about to end, and no others.
    pub(super) fn set_ending(&self, ending: &BTreeSet<WorkerRank>) {
        if let Some(on_ending) = self.on_ending.lock().as_ref() {
            on_ending(ending);
        }
    }

    /// Takes the members that the configuration names now. Those that are new join, those that are gone leave.
    pub(super) fn set(&self, cluster: &ClusterConfig) {
        let others = cluster.member.iter().filter(|member| member.id != self.me.id);
        let readable = others.clone().filter_map(|member| {
            let peer = Peer {
                server_name: member.identity().dns_name(),
                address: member.data?,
                shm: member.shm.clone(),
            };
            Some((WorkerId(member.id), peer))
        });
        let wanted = others.filter(|member| self.roles.contains(&member.role()));
        let mut wanted: BTreeMap<WorkerId, &MemberConfig> =
            wanted.map(|member| (WorkerId(member.id), member)).collect();
        let mut gone = Vec::new();
        {
            let mut table = self.table.write();
            table.readable = readable.collect();
            let leaving: Vec<WorkerId> = table
                .linked
                .iter()
                .filter(|(id, entry)| wanted.get(id).is_none_or(|now| **now != entry.config))
                .map(|(id, _)| *id)
                .collect();
            for id in leaving {
                gone.extend(table.linked.remove(&id));
            }
            wanted.retain(|id, _| !table.linked.contains_key(id));
            for (id, member) in wanted {
                tracing::info!(member = member.name, control = %member.control, "linking to a member");
                table.linked.insert(id, self.link(member));
            }
        }
        for entry in &gone {
            tracing::info!(member = entry.config.name, "a member left the configuration");
        }
        // Their tasks end without waiting; outside the lock, since companions may look at the table.
        drop(gone);
    }

    /// Ends the link to a member and makes a new one: every call on it ends as if the member were lost.
    pub(super) fn relink(&self, worker: WorkerRank) {
        let old = {
            let mut table = self.table.write();
            let Some(config) = table.linked.get(&worker.worker).map(|entry| entry.config.clone())
            else {
                return;
            };
            table.linked.insert(worker.worker, self.link(&config))
        };
        // Outside the lock, since companions may look at the table.
        drop(old);
    }

    fn link(&self, member: &MemberConfig) -> Entry {
        let link = Link::start(LinkOptions {
            peer: MemberAddress {
                member: member.identity(),
                worker: member.rank(),
                control: member.control.to_string(),
            },
            facts: self.facts.clone(),
            identity: Arc::clone(&self.identity),
            runtime: self.runtime.clone(),
            lanes: self.lanes.clone(),
            clock: Arc::clone(&self.clock),
            limits: LinkLimits::DEFAULT,
        });
        let link = Arc::new(link);
        let remote = match member.role() {
            MemberRole::Decode => Remote::Decode(Arc::new(RemoteDecode::new(Arc::clone(&link)))),
            MemberRole::Prefill => Remote::Prefill(Arc::new(RemotePrefill::new(Arc::clone(&link)))),
            MemberRole::Kvstore => Remote::Store(Arc::new(RemoteStore::new(Arc::clone(&link)))),
            MemberRole::Router => Remote::Nothing,
        };
        let companion = self.on_link.lock().as_ref().map(|make| make(&link, member));
        Entry { config: member.clone(), link, remote, companion }
    }

    /// The store nodes that are there.
    pub(super) fn stores(&self) -> Vec<StoreNode> {
        let table = self.table.read();
        let ready = table.linked.values().filter(|entry| entry.link.is_ready());
        let nodes = ready.filter_map(|entry| match &entry.remote {
            Remote::Store(store) => Some(StoreNode {
                rank: entry.config.rank(),
                store: Arc::clone(store) as Arc<dyn BlockStore>,
            }),
            Remote::Decode(_) | Remote::Prefill(_) | Remote::Nothing => None,
        });
        nodes.collect()
    }

    /// For operators: every linked member, and how its link stands.
    pub(super) fn states(&self) -> Value {
        let table = self.table.read();
        let members = table.linked.values().map(|entry| {
            let (state, detail) = match entry.link.state() {
                LinkState::Ready(_) => ("ready", None),
                LinkState::Connecting { error } => ("connecting", error),
                LinkState::Refused { reason } => ("refused", Some(reason)),
                LinkState::Closed => ("closed", None),
            };
            let stats = entry.link.stats();
            let config = &entry.config;
            let value = json!({
                "role": config.role,
                "worker": config.id,
                "control": config.control.to_string(),
                "data": shown(config.data),
                "state": state,
                "detail": detail,
                "connections": stats.connections,
                "lanes": stats.lanes,
                "calls": stats.calls,
                "calls_refused": stats.calls_refused,
            });
            (config.name.clone(), value)
        });
        Value::Object(members.collect())
    }

    /// Ends all links and waits for their tasks.
    pub(super) async fn close(&self) {
        let entries = std::mem::take(&mut self.table.write().linked);
        for entry in entries.into_values() {
            drop(entry.companion);
            entry.link.stop().await;
        }
    }

    fn find<T>(&self, worker: WorkerRank, choose: impl Fn(&Remote) -> Option<T>) -> Option<T> {
        let table = self.table.read();
        let entry = table.linked.get(&worker.worker)?;
        if !entry.link.is_ready() || entry.config.rank() != worker {
            return None;
        }
        choose(&entry.remote)
    }
}

impl DecodeDirectory for Peers {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        self.find(worker, |remote| match remote {
            Remote::Decode(decode) => Some(Arc::clone(decode) as Arc<dyn Decode>),
            Remote::Prefill(_) | Remote::Store(_) | Remote::Nothing => None,
        })
    }
}

impl PrefillDirectory for Peers {
    fn prefill(&self, worker: WorkerRank) -> Option<Arc<dyn Prefill>> {
        self.find(worker, |remote| match remote {
            Remote::Prefill(prefill) => Some(Arc::clone(prefill) as Arc<dyn Prefill>),
            Remote::Decode(_) | Remote::Store(_) | Remote::Nothing => None,
        })
    }

    fn prefill_members(&self) -> Vec<WorkerRank> {
        let table = self.table.read();
        let entries = table.linked.values().filter(|entry| entry.link.is_ready());
        let prefills = entries.filter(|entry| matches!(entry.remote, Remote::Prefill(_)));
        prefills.map(|entry| entry.config.rank()).collect()
    }
}

impl PeerDirectory for Peers {
    fn peer(&self, region: RegionId) -> Option<Peer> {
        self.table.read().readable.get(&region.owner().worker).cloned()
    }
}
