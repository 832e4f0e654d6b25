//! Bytes that change on their way between two processes.
//!
//! A relay stands before the data addresses of the members that a decode worker reads from, and flips bits in datagrams.
//! What arrives damaged is noticed and sent again, or read elsewhere, or computed: the answer stays the same.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kvasir::identity::MemberRole;

use super::hand::{Hand, Reads};
use super::view::{EXACT, NOTICED, long_prompt, within};

const COUNTS: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 1), (MemberRole::Prefill, 1), (MemberRole::Decode, 1)];
/// One datagram in so many is damaged.
const DAMAGED: usize = 7;
/// How long a relay waits for a datagram before it looks whether the test is over.
const WAIT: Duration = Duration::from_millis(100);
/// The largest datagram.
const BYTES_MAX: usize = 65_536;

/// What all relays of a test share.
#[derive(Default)]
struct Flight {
    over: AtomicBool,
    /// Whether datagrams are damaged now.
    rough: AtomicBool,
    damaged: AtomicUsize,
}

/// Relays datagrams to a member and back until the test is over. Returns the address to send to.
fn relay(flight: &Arc<Flight>, member: SocketAddr) -> SocketAddr {
    let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free UDP port");
    front.set_read_timeout(Some(WAIT)).expect("a socket takes a time limit");
    let address = front.local_addr().expect("a bound socket has an address");
    let flight = Arc::clone(flight);
    thread::spawn(move || {
        let mut backs: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
        let mut bytes = vec![0; BYTES_MAX];
        while !flight.over.load(Ordering::SeqCst) {
            let Ok((count, from)) = front.recv_from(&mut bytes) else { continue };
            let back =
                backs.entry(from).or_insert_with(|| answering(&flight, &front, member, from));
            // A lost datagram is one more fault to live with.
            drop(back.send(&bytes[..count]));
        }
    });
    address
}

/// The socket for one reader, and a thread that brings it the member's answers, some of them damaged.
fn answering(
    flight: &Arc<Flight>,
    front: &UdpSocket,
    member: SocketAddr,
    reader: SocketAddr,
) -> UdpSocket {
    let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free UDP port");
    back.connect(member).expect("a loopback address");
    back.set_read_timeout(Some(WAIT)).expect("a socket takes a time limit");
    let (front, from) = (front.try_clone().expect("a socket"), back.try_clone().expect("a socket"));
    let flight = Arc::clone(flight);
    thread::spawn(move || {
        let mut bytes = vec![0; BYTES_MAX];
        for number in 0_usize.. {
            if flight.over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(count) = from.recv(&mut bytes) else { continue };
            if flight.rough.load(Ordering::SeqCst) && number % DAMAGED == 0 {
                bytes[count / 2] ^= 0x10;
                flight.damaged.fetch_add(1, Ordering::SeqCst);
            }
            drop(front.send_to(&bytes[..count], reader));
        }
    });
    back
}

#[test]
fn bytes_damaged_on_their_way_change_no_answer() {
    let flight = Arc::new(Flight::default());
    let mut cluster = Hand::plan(COUNTS, Reads::Quic, EXACT);
    for name in ["kvstore-1", "prefill-1", "router-1"] {
        cluster.start(name);
    }
    let relays = ["kvstore-1", "prefill-1"].map(|name| (name, relay(&flight, cluster.data(name))));
    cluster.start_reading_through("decode-1", &relays);
    cluster.joined();
    let prompt = long_prompt("flight", 190);
    let expected = cluster.answer(&prompt);
    assert!(0 < expected.bytes_fetched, "blocks came through a relay");
    flight.rough.store(true, Ordering::SeqCst);
    // From prefill, which computes again, then from the store.
    for tier in ["all", "device"] {
        cluster.at_rest();
        cluster.evict(tier);
        let answer = within("an answer on a rough way", 4 * NOTICED, || cluster.answer(&prompt));
        assert_eq!(answer.text, expected.text, "{tier}");
    }
    assert_ne!(flight.damaged.load(Ordering::SeqCst), 0, "something was damaged");
    flight.rough.store(false, Ordering::SeqCst);
    cluster.at_rest();
    assert_eq!(cluster.answer(&prompt).text, expected.text);
    cluster.at_rest();
    flight.over.store(true, Ordering::SeqCst);
}
