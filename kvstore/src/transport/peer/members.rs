//! What is known of each peer: whether it answers, and the warm connections to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::Connection;
use shared::Timestamp;
use tokio::sync::OnceCell;

use crate::transport::shm::Lines;

/// The peers that were read from, by server name. Bounded: beyond the bound those nobody reads from just now are
/// forgotten, with their connections.
pub(super) struct Members {
    members: Mutex<HashMap<String, Arc<Member>>>,
    members_max: usize,
}

/// One peer.
pub(in crate::transport) struct Member {
    health: Mutex<Health>,
    link: Mutex<Link>,
    /// Batches that began with it and are not over.
    batches: AtomicUsize,
    /// Idle shared memory connections.
    pub(in crate::transport) lines: Lines,
}

/// One of the batches that may read from a peer at a time. Given back on drop.
pub(super) struct Seat(Arc<Member>);

/// After a failure the peer is left alone for a while, longer each time, so that many requests do not each wait for a
/// peer that is gone.
#[derive(Default)]
struct Health {
    failures: u32,
    blocked_until: Option<Timestamp>,
}

/// The place of one warm QUIC connection. Whoever finds it empty connects; the others wait for that.
struct Link {
    address: SocketAddr,
    connection: Arc<OnceCell<Connection>>,
}

const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// A member that came back is found again within a second, which is about what a process needs to start.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl Members {
    pub(super) fn new(members_max: usize) -> Self {
        Self { members: Mutex::default(), members_max }
    }

    /// The state of a peer, made when it is new. None when too many peers are being read from.
    pub(super) fn member(&self, server_name: &str, address: SocketAddr) -> Option<Arc<Member>> {
        let mut members = self.members.lock();
        if let Some(member) = members.get(server_name) {
            return Some(Arc::clone(member));
        }
        if self.members_max <= members.len() {
            members.retain(|_, member| 1 < Arc::strong_count(member));
        }
        if self.members_max <= members.len() {
            return None;
        }
        let member = Arc::new(Member::new(address));
        members.insert(server_name.to_owned(), Arc::clone(&member));
        Some(member)
    }
}

impl Member {
    fn new(address: SocketAddr) -> Self {
        let link = Link { address, connection: Arc::default() };
        Self {
            health: Mutex::default(),
            link: Mutex::new(link),
            batches: AtomicUsize::new(0),
            lines: Lines::default(),
        }
    }

    /// Whether the peer failed so recently that it is not worth a try.
    pub(super) fn is_blocked(&self, now: Timestamp) -> bool {
        self.health.lock().blocked_until.is_some_and(|until| now < until)
    }

    pub(super) fn succeeded(&self) {
        *self.health.lock() = Health::default();
    }

    pub(super) fn failed(&self, now: Timestamp) {
        let mut health = self.health.lock();
        // What was under way when it failed fails with it, and counts as one.
        if health.blocked_until.is_some_and(|until| now < until) {
            return;
        }
        health.blocked_until = Some(now.after(backoff(health.failures)));
        health.failures = health.failures.saturating_add(1);
    }

    /// The place of the connection to this address: the present one, or an empty one when it is closed or leads
    /// elsewhere.
    pub(in crate::transport) fn connection(
        &self,
        address: SocketAddr,
    ) -> Arc<OnceCell<Connection>> {
        let mut link = self.link.lock();
        let closed = link.connection.get().is_some_and(|known| known.close_reason().is_some());
        if closed || link.address != address {
            *link = Link { address, connection: Arc::default() };
        }
        Arc::clone(&link.connection)
    }

    /// Lets later reads make a new connection; reads under way keep the present one. For a peer that did not answer in
    /// time: it may have been replaced by another process that knows nothing of the connection.
    pub(super) fn renew(&self) {
        self.link.lock().connection = Arc::default();
    }
}

impl Seat {
    /// None when `seats_max` are taken.
    pub(super) fn take(member: &Arc<Member>, seats_max: usize) -> Option<Self> {
        let more = |taken: usize| (taken < seats_max).then_some(taken + 1);
        let taken = member.batches.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.is_ok().then(|| Self(Arc::clone(member)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.batches.fetch_sub(1, Ordering::AcqRel);
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use shared::Timestamp;

    use super::{Members, backoff};

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    #[test]
    fn the_wait_doubles_up_to_a_second() {
        for (failures, milliseconds) in [(0, 50), (1, 100), (4, 800), (5, 1_000), (40, 1_000)] {
            assert_eq!(backoff(failures), Duration::from_millis(milliseconds), "{failures}");
        }
    }

    #[test]
    fn a_peer_that_failed_is_left_alone_until_its_time() {
        let members = Members::new(4);
        let member = members.member("a", address(1)).unwrap();
        let milliseconds = |count: u64| Timestamp(count * 1_000_000);
        assert!(!member.is_blocked(milliseconds(0)));
        member.failed(milliseconds(100));
        assert!(member.is_blocked(milliseconds(149)));
        assert!(!member.is_blocked(milliseconds(150)));
        member.failed(milliseconds(150));
        assert!(member.is_blocked(milliseconds(249)));
        member.succeeded();
        assert!(!member.is_blocked(milliseconds(151)));
    }

    #[test]
    fn peers_beyond_the_bound_push_out_idle_ones() {
        let members = Members::new(2);
        let first = members.member("a", address(1)).unwrap();
        drop(members.member("b", address(2)));
        let third = members.member("c", address(3)).unwrap();
        assert!(members.member("d", address(4)).is_none(), "both are in use");
        assert!(Arc::ptr_eq(&first, &members.member("a", address(1)).unwrap()));
        drop(third);
        assert!(members.member("d", address(4)).is_some());
    }

    #[test]
    fn another_address_is_another_connection() {
        let members = Members::new(1);
        let member = members.member("a", address(1)).unwrap();
        let first = member.connection(address(1));
        assert!(Arc::ptr_eq(&first, &member.connection(address(1))));
        let second = member.connection(address(2));
        assert!(!Arc::ptr_eq(&first, &second));
        member.renew();
        assert!(!Arc::ptr_eq(&second, &member.connection(address(2))));
    }
}
