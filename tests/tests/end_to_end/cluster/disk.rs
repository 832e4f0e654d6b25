//! Blocks on disk: they outlive a restart of everything, and damage to them costs time only.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use kvasir::identity::MemberRole;

use super::hand::{Hand, Reads};
use super::up::Up;
use super::view::{EXACT, SOON, View, long_prompt, until};
use crate::process::run;

/// Waits until the store has written so many blocks.
fn written(view: &View, blocks: f64) {
    until("the blocks were on disk", SOON, || {
        let written = view.metric("kvstore-1", "kvasir_kvstore_disk_written_total");
        (blocks <= written).then_some(())
    });
}

/// Flips one byte of every few thousand in the segments, their heads left out.
fn damage(folder: &Path) -> usize {
    let mut flipped = 0;
    for entry in fs::read_dir(folder).expect("the store has a folder").flatten() {
        if entry.path().extension().is_none_or(|kind| kind != "segment") {
            continue;
        }
        let bytes = fs::read(entry.path()).expect("a segment can be read");
        let file = OpenOptions::new().write(true).open(entry.path()).expect("a file of ours");
        for at in (8_000..bytes.len()).step_by(5_000) {
            let offset = u64::try_from(at).expect("a file fits");
            file.write_all_at(&[bytes[at] ^ 0x40], offset).expect("a byte fits");
            flipped += 1;
        }
    }
    flipped
}

/// The exit status of a check of a store's files.
fn fsck(folder: &Path) -> Option<i32> {
    run(&["kv", "fsck", folder.to_str().expect("UTF-8")]).status.code()
}

#[test]
fn a_store_killed_while_it_writes_has_no_damage() {
    let counts = [(MemberRole::Prefill, 1), (MemberRole::Decode, 1), (MemberRole::Kvstore, 1)];
    let mut cluster = Hand::start_all(counts, Reads::SharedMemory, EXACT);
    let files = cluster.folder().join("disk-kvstore-1");
    for round in 0..3 {
        let before = cluster.metric("kvstore-1", "kvasir_kvstore_disk_written_total");
        cluster.answer(&long_prompt(&format!("killed {round}"), 100));
        written(&cluster, before + 1.0);
        cluster.kill("kvstore-1");
        assert_eq!(fsck(&files), Some(0), "round {round}");
        cluster.start("kvstore-1");
        cluster.joined();
    }
}

#[test]
fn blocks_outlive_a_restart_and_damaged_ones_are_computed_anew() {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let prompt = long_prompt("disk", 190);
    let up = Up::start(Some(folder.path()), EXACT, &[]);
    let cold = up.answer(&prompt);
    assert_eq!(cold.cached_tokens, 0);
    written(&up, 10.0);
    let (code, output) = up.stop();
    assert_eq!(code, Some(0), "{output}");

    let up = Up::start(Some(folder.path()), EXACT, &[]);
    let warm = up.answer(&prompt);
    assert_eq!(warm.text, cold.text);
    assert!(0 < warm.cached_tokens && 0 < warm.bytes_fetched, "{warm:?}");
    assert!(0.0 < up.metric("kvstore-1", "kvasir_kvstore_disk_read_total"));
    up.at_rest();

    let files = up.state.join("disk/kvstore-1");
    assert_eq!(fsck(&files), Some(0), "beside the running store");
    assert!(10 < damage(&files));
    assert_eq!(fsck(&files), Some(1));
    up.evict("device");
    up.evict("host");
    assert_eq!(up.answer(&prompt).text, cold.text);
    assert!(0.0 < up.metric("kvstore-1", "kvasir_kvstore_disk_corrupt_total"));
    up.at_rest();
    // And the damaged copies are replaced.
    up.evict("device");
    let again = up.answer(&prompt);
    assert_eq!(again.text, cold.text);
    up.at_rest();
    let (code, output) = up.stop();
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn a_tenant_is_evicted_from_a_running_store_for_good() {
    let counts = [(MemberRole::Prefill, 1), (MemberRole::Decode, 1), (MemberRole::Kvstore, 1)];
    let settings =
        format!("{EXACT}[stores]\ndurability = \"disk\"\n[disk]\ntenant_keys = \"keys\"\n");
    let mut cluster = Hand::start_all(counts, Reads::SharedMemory, &settings);
    let files = cluster.folder().join("disk-kvstore-1");
    let keys = cluster.folder().join("keys/kvstore-1");
    let prompt = long_prompt("evicted", 100);
    let cold = cluster.answer(&prompt);
    until("blocks were acknowledged as durable", SOON, || {
        let blocks = cluster.metric("kvstore-1", "kvasir_kvstore_host_acknowledged_total");
        (1.0 <= blocks).then_some(())
    });
    cluster.at_rest();
    let key_files = || fs::read_dir(&keys).expect("the keys have a folder").flatten().count();
    assert_eq!(key_files(), 1);
    let admin = format!("http://{}", cluster.admin("kvstore-1"));
    let evict = ["kv", "evict", "--tenant", "default", "--admin", &admin];
    let output = run(&evict);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(key_files(), 0);
    assert_eq!(fsck(&files), Some(0), "beside the running store");
    cluster.kill("kvstore-1");
    cluster.start("kvstore-1");
    cluster.joined();
    assert_eq!(cluster.metric("kvstore-1", "kvasir_kvstore_disk_held_blocks"), 0.0);
    cluster.evict("device");
    let again = cluster.answer(&prompt);
    assert_eq!((again.text, again.cached_tokens), (cold.text, 0));
    let elsewhere = ["kv", "evict", "--tenant", "default", "--admin"];
    let decode = format!("http://{}", cluster.admin("decode-1"));
    let refused = run(&[&elsewhere[..], &[decode.as_str()]].concat());
    assert_eq!(refused.status.code(), Some(1), "a worker has no store: {refused:?}");
}
