//! Everything that can be checked: headers, seals, tables, places of records, and every payload.

use shared::BlockName;

use super::{BlockFault, Checker, Segment, SegmentState, Survey};
use crate::disk::format::{PAGE, RecordHeader, record_bytes};

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The segment's header is damaged or speaks of another file.
    Header,
    /// There is a table, but no intact seal behind it.
    Seal,
    /// There is a seal, but no table that agrees with it.
    Table,
    /// Writing broke off, or the end of the file is missing: there is no seal, but a later segment of the same store.
    Unsealed,
    /// A listed record lies where none can.
    Bounds,
    /// Two records claim the same page.
    Overlap,
    /// A record's header is missing, damaged, or not what the table says.
    Record,
    /// A payload fails its checksum.
    Payload,
    /// The system refuses to read.
    Read,
}

impl Damage {
    /// The word used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Seal => "seal",
            Self::Table => "table",
            Self::Unsealed => "unsealed",
            Self::Bounds => "bounds",
            Self::Overlap => "overlap",
            Self::Record => "record",
            Self::Payload => "payload",
            Self::Read => "read",
        }
    }
}

/// Something damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// In which segment.
    pub segment: u64,
    /// At which page of it, when that is known.
    pub page: Option<u32>,
    /// Which block is lost by it, when that is known.
    pub name: Option<BlockName>,
    /// What kind it is.
    pub damage: Damage,
    /// One line for a person.
    pub detail: String,
}

/// Who follows a check: is told of reads, to hold them back, and of what is found.
pub trait Watcher {
    /// So many bytes were read; the next read comes when this returns.
    fn read(&mut self, bytes: u64);
    /// Something is damaged. Called as often as there is damage.
    fn found(&mut self, finding: &Finding);
}

/// What a check looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Segments, those below included.
    pub segments: u64,
    /// Of another format version; not looked into.
    pub foreign: u64,
    /// Shorter than their first page; not looked into.
    pub unborn: u64,
    /// Blocks whose payload was read.
    pub blocks: u64,
    /// Those that are intact.
    pub intact: u64,
    /// Bytes of records read.
    pub read_bytes: u64,
    /// Bytes behind the last intact record of segments without a seal: what a stopped process leaves, no damage.
    pub torn_bytes: u64,
    /// How much damage was found.
    pub damaged: u64,
}

impl Checked {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { segments, foreign, unborn, blocks, intact, read_bytes, torn_bytes, damaged } =
            other;
        self.segments += segments;
        self.foreign += foreign;
        self.unborn += unborn;
        self.blocks += blocks;
        self.intact += intact;
        self.read_bytes += read_bytes;
        self.torn_bytes += torn_bytes;
        self.damaged += damaged;
    }
}

/// Checks every segment and every payload, past the page cache. Blocks for as long as `watcher` lets it; changes nothing
/// and may run beside a store.
pub fn fsck(survey: &Survey, watcher: &mut dyn Watcher) -> Checked {
    let mut checked = Checked::default();
    let mut checker = Checker::new();
    for segment in survey.segments() {
        checked.add(&check_segment(survey, &segment, &mut checker, watcher));
    }
    checked
}

pub(super) fn check_segment(
    survey: &Survey,
    segment: &Segment,
    checker: &mut Checker,
    watcher: &mut dyn Watcher,
) -> Checked {
    let mut check = Check { segment, watcher, checked: Checked::default(), pending: Vec::new() };
    check.checked.segments = 1;
    match &segment.state {
        SegmentState::Unborn => check.checked.unborn = 1,
        SegmentState::Foreign { .. } => check.checked.foreign = 1,
        SegmentState::Damaged { reason } => {
            let damage = if segment.unreadable { Damage::Read } else { Damage::Header };
            check.found(None, damage, reason);
            check.report();
        }
        SegmentState::Sealed | SegmentState::Open => check.blocks(checker),
        SegmentState::Unsealed => {
            let identity = segment.header.map(|header| header.identity);
            if segment.seal_fault.is_none() && survey.identity_after(segment.number) == identity {
                let detail =
                    "it has no seal, but a later segment; writing broke off or its end is missing";
                check.found(None, Damage::Unsealed, detail);
                check.report();
            }
            check.blocks(checker);
        }
    }
    check.checked
}

/// The check of one segment.
struct Check<'a> {
    segment: &'a Segment,
    watcher: &'a mut dyn Watcher,
    checked: Checked,
    /// Found at the present record. Of the last one without a seal it is a torn end, of any other one damage.
    pending: Vec<Finding>,
}

impl Check<'_> {
    fn blocks(&mut self, checker: &mut Checker) {
        let segment = self.segment;
        match segment.seal_fault {
            Some(Damage::Seal) => {
                self.found(
                    None,
                    Damage::Seal,
                    "its table is there, the seal behind it is not intact",
                );
            }
            Some(_) => {
                self.found(
                    None,
                    Damage::Table,
                    "its seal is there, the table does not agree with it",
                );
            }
            None => {}
        }
        self.report();
        // With a table, or a seal, all records were there once.
        let complete = segment.state == SegmentState::Sealed || segment.seal_fault.is_some();
        let mut records: Vec<&RecordHeader> = segment.records.iter().collect();
        records.sort_by_key(|record| record.page);
        let (mut end, mut end_whole) = (PAGE, PAGE);
        let last = records.last().copied();
        for record in records {
            self.place(record, end);
            end = end.max(record.end());
            let intact = self.payload(record, checker);
            if intact {
                end_whole = end;
            }
            // A process that was stopped leaves one record unfinished; a loss of power may leave more, and those are named.
            if intact || complete || Some(record) != last {
                self.report();
            }
        }
        if !complete {
            self.checked.torn_bytes = segment.data_bytes - end_whole.min(segment.data_bytes);
        }
    }

    /// Compares where a record lies with where the one before it ends.
    fn place(&mut self, record: &RecordHeader, end: u64) {
        let offset = record.offset();
        if offset < PAGE {
            self.found(
                Some(record),
                Damage::Bounds,
                "it is listed in the page of the segment's header",
            );
        } else if offset < end {
            self.found(Some(record), Damage::Overlap, "it begins inside the record before it");
        } else if end < offset && self.segment.state != SegmentState::Sealed {
            // In a sealed one they were lost before the table was written, which lists what was left.
            let detail = format!("the {} bytes before it are no record", offset - end);
            self.found(Some(record), Damage::Record, &detail);
        }
    }

    fn payload(&mut self, record: &RecordHeader, checker: &mut Checker) -> bool {
        let result = self.segment.check(&record.into(), checker);
        let bytes = record_bytes(record.bytes);
        self.checked.blocks += 1;
        self.checked.read_bytes += bytes;
        self.watcher.read(bytes);
        let Err(fault) = result else {
            self.checked.intact += 1;
            return true;
        };
        let damage = match fault {
            BlockFault::Payload => Damage::Payload,
            BlockFault::Record => Damage::Record,
            BlockFault::Cut => Damage::Bounds,
            BlockFault::Read(_) => Damage::Read,
        };
        self.found(Some(record), damage, &fault.to_string());
        false
    }

    fn found(&mut self, record: Option<&RecordHeader>, damage: Damage, detail: &str) {
        self.pending.push(Finding {
            segment: self.segment.number,
            page: record.map(|record| record.page),
            name: record.map(|record| record.name),
            damage,
            detail: detail.to_owned(),
        });
    }

    fn report(&mut self) {
        for finding in self.pending.drain(..) {
            self.checked.damaged += 1;
            self.watcher.found(&finding);
        }
    }
}
