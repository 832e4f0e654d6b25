//! Media embeddings between processes: both ends are in one here, over real sockets and real shared memory.

use std::path::PathBuf;
use std::sync::Arc;

use shared::{Durability, OfferOutcome, SlotMemory};

use super::support::{CONFIG, Directory, Identity, runtime, server_name};
use crate::media::MediaStats;
use crate::media::tests::{client, embedding, host, piece_name, put, read, rows, slots};
use crate::tenants::TenantQuotas;
use crate::transport::Transport;
use crate::transport::peer::{Peer, PeerTransport};

/// Reads embeddings from a store behind another transport, and says how many pieces came through shared memory and QUIC.
fn paths(shm: bool) -> [u64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let socket = |name: &str| -> Option<PathBuf> { shm.then(|| folder.path().join(name)) };
    let start = |name: &str| -> (Arc<PeerTransport>, Arc<Directory>) {
        let ((directory, _), wiring) = Identity::new(name).wiring(&runtime, socket(name));
        (Arc::new(PeerTransport::start(CONFIG, wiring).unwrap()), directory)
    };
    let at = |transport: &PeerTransport, name: &str| {
        let (server_name, address) = (server_name(name), transport.address());
        Some(Peer { server_name, address, shm: socket(name) })
    };
    let (near, nears) = start("near");
    let (far, fars) = start("far");
    nears.set(at(&far, "far"));
    fars.set(at(&near, "near"));
    let store = host(Arc::clone(&far) as Arc<dyn Transport>, None, TenantQuotas::default());
    far.register_shared(store.blocks(), store.block_memory()).unwrap();
    let pool = slots(1, 12);
    near.register(&pool).unwrap();
    let client = client(&store, Arc::clone(&near) as Arc<dyn Transport>, &pool);
    for number in [1, 2] {
        assert_eq!(put(&client, number, Durability::Memory), OfferOutcome::Stored);
    }
    assert_eq!(far.stats().quic.objects, 10, "the store read what was put");
    let _evicted = pool.evict_all();
    for number in [1, 2] {
        assert_eq!(read(&client, &embedding(number)), Ok(rows(number)));
    }
    let stats = near.stats();
    // Damaged where it lies: a miss, and not found again.
    let _evicted = pool.evict_all();
    let slot = store.blocks().hold(piece_name(1, 0)).unwrap().index();
    store.block_memory().write(slot, &mut |bytes| bytes[70] ^= 1);
    assert!(read(&client, &embedding(1)).is_err());
    assert!(!store.blocks().contains(piece_name(1, 0)));
    assert!(read(&client, &embedding(1)).is_err());
    let expected = MediaStats { stored: 2, hits: 2, misses: 2, ..MediaStats::default() };
    assert_eq!(client.stats(), expected);
    [stats.shared_memory.objects, stats.quic.objects]
}

#[test]
fn embeddings_are_read_over_quic() {
    assert_eq!(paths(false), [0, 10]);
}

#[test]
fn embeddings_are_read_through_shared_memory() {
    assert_eq!(paths(true), [10, 0]);
}
