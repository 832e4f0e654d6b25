//! Starts, ends and crashes of the store of a schedule.

use std::fs;

use rustix::io::Errno;

use super::super::drive::{Crash, SimulatedDrive, WriteFault};
use super::World;
use super::node::{Node, catalog_logs, crash_catalog, start_disk};
use crate::disk::survey::{CatalogState, Exclusive, Finding, Watcher, fsck};
use crate::disk::tests::Folder;

impl World {
    pub(super) fn restart(&mut self) {
        if self.below(3) != 0 {
            return self.crash();
        }
        self.tell("stop".to_owned());
        self.stop();
        self.start_again();
    }

    pub(super) fn crash(&mut self) {
        let image = self.image();
        self.go_on_with(image);
    }

    /// What a crash now would leave.
    pub(super) fn image(&mut self) -> (Folder, SimulatedDrive) {
        let crash = [Crash::Process, Crash::Machine][self.generator.below(2)];
        self.model.files_whole &= crash == Crash::Process;
        self.history.push(format!("crash of the {crash:?}"));
        let to = Folder::in_memory();
        let paths = (self.folder.path(), to.path());
        fs::copy(paths.0.join("lock"), paths.1.join("lock")).unwrap();
        let drive = self.drive.crash(crash, paths, &mut self.generator);
        crash_catalog(crash, &self.logs, paths, &mut self.generator);
        (to, drive)
    }

    pub(super) fn go_on_with(&mut self, (folder, drive): (Folder, SimulatedDrive)) {
        // What the old process still does to its files is of no consequence.
        self.stop();
        self.config.folder = folder.path().to_owned();
        self.folder = folder;
        self.drive = drive;
        self.start_again();
    }

    pub(super) fn stop(&mut self) {
        self.lookups.clear();
        self.drive.release();
        self.drive.mend();
        if let Some(node) = self.node.take() {
            for pool in node.stop() {
                assert!(pool.audit().is_at_rest(), "{:?}", pool.audit());
            }
        }
    }

    fn start_again(&mut self) {
        match self.below(6) {
            0 => {
                let exclusive = Exclusive::lock(self.folder.path()).unwrap();
                let rebuilt = exclusive.rebuild_catalog().unwrap();
                self.tell(format!("rebuild the catalog: {} blocks", rebuilt.blocks));
            }
            1 => {
                fs::remove_dir_all(self.folder.path().join("catalog")).unwrap();
                self.tell("lose the catalog".to_owned());
            }
            _ => {}
        }
        self.start();
    }

    pub(super) fn start(&mut self) {
        if self.below(6) == 0 {
            // In vain, when there is something to make durable; the next start finds what this one did.
            self.drive.fail_write(0, WriteFault::Error(Errno::IO));
            let error = start_disk(&self.config, &self.clock, &self.drive).err();
            self.tell(format!("start by a drive that fails: error {}", error.is_some()));
        }
        let disk = start_disk(&self.config, &self.clock, &self.drive).unwrap();
        self.logs = catalog_logs(self.folder.path());
        let (transport, region) = (&self.transport, self.region_next);
        self.node = Some(Node::start(Some(disk), transport, &self.clock, region));
        self.region_next += 10;
        self.model.slowed = false;
        let held = self.node().disk.as_ref().map_or(0, |disk| disk.stats().objects_held);
        self.tell(format!("start: {held} blocks"));
        self.check_drive();
    }

    /// Ends everything and looks at the files. Says what was done.
    pub(super) fn end(mut self) -> Vec<String> {
        self.stop();
        self.worker.assert_at_rest();
        for audit in self.replica.tier.audit() {
            assert!(audit.is_at_rest(), "{audit:?}");
        }
        let exclusive = Exclusive::lock(self.folder.path()).unwrap();
        let mut findings = Findings::default();
        let checked = fsck(exclusive.survey(), &mut findings);
        assert!(!self.model.files_whole || checked.damaged == 0, "{findings:?}");
        if let CatalogState::Compared(check) = exclusive.check_catalog().unwrap() {
            assert!(!self.model.catalog_whole || check.differences() == 0, "{check:?}");
        }
        drop(exclusive);
        std::mem::take(&mut self.history)
    }
}

/// Keeps what is found.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Watcher for Findings {
    fn read(&mut self, _: u64) {}

    fn found(&mut self, finding: &Finding) {
        self.0.push(finding.clone());
    }
}
