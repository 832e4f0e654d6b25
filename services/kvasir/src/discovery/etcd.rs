//! Members in etcd: one key for each, `PREFIXmembers/NAME`, which lives as long as its member's lease.
//!
//! A follower lists the keys and watches from there. Whatever interrupts it, compaction included, it lists again. While it
//! watches it asks a small question now and then: a watch that is silent for want of news and one that is dead look alike.
//! A registrar keeps this process's own key, and makes it anew when its lease is over.
//!
//! Invariants: a member leaves when etcd says so: it tells the end of the key, or lists it no more, and a lease's time later the
//! key is not back and etcd still answers. Each list begins that time anew. An etcd that stood still for longer than a lease, or
//! lost its data, therefore takes nobody away who lives, whatever it told before: until then it has registered anew.

mod client;
#[rustfmt::skip]
#[expect(
    unreachable_pub,
    unnameable_types,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::absolute_paths,
    clippy::trivially_copy_pass_by_ref,
    reason = "nobody edits generated code"
)]
mod generated;
mod register;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, from_slice, from_value, to_vec};
use tokio::time::{Instant, interval, sleep};
use tonic::Streaming;

use super::view::{Entries, Entry, Follower};
use super::{EtcdConfig, PAUSE_MAX, Pauses};
use crate::config::MemberConfig;
use crate::identity::Identity;
use client::{Client, Listed};
use generated as v3;

pub(super) use register::Registrar;

/// How often a follower asks whether etcd still answers.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Most members in one list.
const ENTRIES_MAX: i64 = 1_024;
/// What is read of an entry.
const FIELDS: [&str; 8] = ["name", "role", "id", "control", "data", "admin", "listen", "shm"];
/// Longest value that is taken for an entry.
const VALUE_BYTES_MAX: usize = 4_096;

/// An etcd, and where in it this cluster is. Clones are the same.
#[derive(Clone)]
pub(super) struct Etcd {
    config: Arc<EtcdConfig>,
    identity: Arc<Identity>,
}

impl Etcd {
    pub(super) fn new(config: EtcdConfig, identity: Arc<Identity>) -> Self {
        Self { config: Arc::new(config), identity }
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(self.config.lease_s)
    }

    /// Longest pause between attempts: with one of them a member is back before it has left.
    fn pause_max(&self) -> Duration {
        PAUSE_MAX.min(self.lease() / 2)
    }

    /// What the keys of members begin with.
    fn prefix(&self) -> String {
        format!("{}members/", self.config.prefix)
    }

    fn key(&self, member: &str) -> Vec<u8> {
        format!("{}{member}", self.prefix()).into_bytes()
    }
}

/// Where a follower stands. It outlives connections.
struct Position {
    revision: i64,
    entries: Entries,
    /// Members whose keys are gone, and when they leave.
    leaving: BTreeMap<String, Instant>,
    /// How long after its key a member leaves.
    grace: Duration,
}

/// Why following was interrupted.
enum Interrupted {
    /// What was to be told is not kept any more: the list is to be read again.
    Compacted,
    /// etcd does not answer.
    Fault(String),
}

impl From<String> for Interrupted {
    fn from(reason: String) -> Self {
        Self::Fault(reason)
    }
}

/// Follows the members for ever.
#[expect(clippy::infinite_loop, reason = "its caller drops it at the end")]
pub(super) async fn follow(etcd: &Etcd, mut follower: Follower) {
    let mut position = Position::new(etcd.lease());
    let mut pauses = Pauses::up_to(etcd.pause_max());
    let mut endpoint = 0;
    loop {
        let Err(ended) =
            follow_once(etcd, endpoint, &mut position, &mut follower, &mut pauses).await;
        match ended {
            Interrupted::Compacted => tracing::debug!("listing the members again"),
            Interrupted::Fault(reason) => {
                follower.view.fault(&reason);
                endpoint += 1;
            }
        }
        sleep(pauses.take()).await;
    }
}

/// One connection, from the list to whatever ends it.
async fn follow_once(
    etcd: &Etcd,
    endpoint: usize,
    position: &mut Position,
    follower: &mut Follower,
    pauses: &mut Pauses,
) -> Result<Infallible, Interrupted> {
    let mut client = Client::connect(etcd, endpoint).await?;
    position.take(client.list(&etcd.prefix()).await?, Instant::now());
    follower.take(&position.entries);
    pauses.reset();
    let mut news = client.watch(&etcd.prefix(), position.revision + 1).await?;
    let mut heartbeat = interval(HEARTBEAT);
    loop {
        let changed = tokio::select! {
            message = next(&mut news) => {
                position.note(message?, &etcd.prefix(), Instant::now())?
            }
            _ = heartbeat.tick() => {
                client.ping(&etcd.prefix()).await?;
                position.let_go(Instant::now())
            }
        };
        if changed {
            follower.take(&position.entries);
        }
        follower.view.confirm();
    }
}

async fn next(news: &mut Streaming<v3::WatchResponse>) -> Result<v3::WatchResponse, Interrupted> {
    match news.message().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(Interrupted::Fault("etcd ended the watch".to_owned())),
        Err(status) => Err(Interrupted::Fault(client::reason(&status))),
    }
}

impl Position {
    fn new(grace: Duration) -> Self {
        Self { revision: 0, entries: Entries::new(), leaving: BTreeMap::new(), grace }
    }

    /// Takes a list. Who is not in it has a lease's time from now on, also when the end of the key was told before: nobody could
    /// register since etcd stopped answering.
    fn take(&mut self, listed: Listed, now: Instant) {
        self.revision = listed.revision;
        let gone: Vec<String> = self
            .entries
            .keys()
            .filter(|name| !listed.entries.contains_key(*name))
            .cloned()
            .collect();
        self.leaving.extend(gone.into_iter().map(|name| (name, now + self.grace)));
        for (name, entry) in listed.entries {
            self.there(name, entry);
        }
    }

    /// Takes what a watch tells. Whether the entries changed.
    fn note(
        &mut self,
        message: v3::WatchResponse,
        prefix: &str,
        now: Instant,
    ) -> Result<bool, Interrupted> {
        if message.compact_revision != 0 {
            return Err(Interrupted::Compacted);
        }
        if message.canceled {
            let reason = message.cancel_reason;
            return Err(Interrupted::Fault(format!("etcd cancelled the watch: {reason}")));
        }
        let mut changed = false;
        for event in message.events {
            let is_delete = event.r#type() == v3::event::EventType::Delete;
            let Some(pair) = event.kv else { continue };
            self.revision = self.revision.max(pair.mod_revision);
            let Some(name) = name_of(&pair.key, prefix) else { continue };
            if is_delete {
                self.gone(name, now);
            } else {
                let entry = entry(&name, &pair.value);
                self.there(name, entry);
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Lets those go whose time is over. Whether the entries changed. To be called when etcd has just answered.
    fn let_go(&mut self, now: Instant) -> bool {
        let due = self.leaving.iter().filter(|(_, until)| **until <= now);
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in &due {
            self.leaving.remove(name);
            self.entries.remove(name);
        }
        !due.is_empty()
    }

    fn there(&mut self, name: String, entry: Entry) {
        self.leaving.remove(&name);
        self.entries.insert(name, entry);
    }

    fn gone(&mut self, name: String, now: Instant) {
        if self.entries.contains_key(&name) {
            self.leaving.entry(name).or_insert(now + self.grace);
        }
    }
}

/// The name of a member from its key.
fn name_of(key: &[u8], prefix: &str) -> Option<String> {
    let name = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    Some(name.to_owned())
}

/// The entry of a key.
fn entry(name: &str, value: &[u8]) -> Entry {
    if VALUE_BYTES_MAX < value.len() {
        return Err(format!(
            "its value has {} bytes, at most {VALUE_BYTES_MAX} are taken",
            value.len()
        ));
    }
    let mut fields: Map<String, Value> = from_slice(value).map_err(|error| error.to_string())?;
    // A newer member may tell more than this one knows.
    fields.retain(|field, _| FIELDS.contains(&field.as_str()));
    let member: MemberConfig = from_value(fields.into()).map_err(|error| error.to_string())?;
    if member.name != name {
        return Err(format!("it is the entry of {}", member.name));
    }
    Ok(member)
}

/// The value of a member's key.
fn value(member: &MemberConfig) -> Vec<u8> {
    // What others do not need stays here.
    let shown = MemberConfig { disk: None, ..member.clone() };
    to_vec(&shown).expect("an entry is JSON")
}
