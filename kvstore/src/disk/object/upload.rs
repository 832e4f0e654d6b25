//! One segment on its way up, part by part. Nothing is found there before the last step, and what failed is withdrawn.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, UploadPart};
use tokio::time::timeout;

use super::{Failure, REQUEST_MAX, Remote};
use crate::disk::Shared;
use crate::disk::format::PAGE;
use crate::disk::io::{Transfers, open};
use crate::disk::segment;
use crate::sys::{Action, Buffer, Piece};

/// How long one part may take, those beside it included: 64 parts of 64 MiB over 1 Gbit/s take 35 s.
const PART_MAX: Duration = Duration::from_secs(120);
/// How long the withdrawal of an upload may take, also at the end of the tier.
const ABORT_MAX: Duration = Duration::from_secs(2);

/// What an upload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uploaded {
    /// It was sent.
    Sent,
    /// It was there.
    Held,
}

/// A segment file that is being read.
struct Source<'a> {
    file: Arc<File>,
    bytes: u64,
    transfers: &'a mut Transfers,
}

impl Source<'_> {
    /// Blocks this thread for a read of the drive.
    fn read(&mut self, range: Range<u64>) -> Result<Bytes, Failure> {
        let length = usize::try_from(range.end - range.start).expect("a part fits memory");
        let buffer = Buffer::new(length).map_err(Failure::Drive)?;
        let piece = Piece { buffer, range: 0..length, offset: range.start };
        self.transfers.push(0, &self.file, Action::Read(piece));
        let read = self.transfers.wait().expect("a transfer is under way");
        read.result.map_err(Failure::Drive)?;
        let buffer = read.buffer.expect("reads come back with their buffer");
        Ok(Bytes::from_owner(Part(buffer)).slice(..length))
    }
}

/// A part that is being sent owns its memory.
struct Part(Buffer);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Uploads a sealed segment of so many bytes, unless it is there.
pub(super) async fn upload(
    shared: &Shared,
    remote: &Remote,
    transfers: &mut Transfers,
    number: u64,
    bytes: u64,
) -> Result<Uploaded, Failure> {
    let path = segment::path(&shared.config.folder, number);
    let file = match open(&path, OpenOptions::new().read(true), shared.drive.io()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Failure::Left),
        opened => Arc::new(opened.map_err(Failure::Drive)?),
    };
    let (store, key) = (remote.store()?, remote.keys.object(number));
    let mut source = Source { file, bytes, transfers };
    if is_there(remote, &*store, &key, &mut source).await? {
        return Ok(Uploaded::Held);
    }
    let mut upload = remote.request(REQUEST_MAX, store.put_multipart(&key)).await?;
    let sent = send(remote, &mut *upload, &mut source).await;
    if sent.is_err() {
        remote.counters.uploads_failed.add(1);
        // What stays is for the bucket's own rule for uploads that were never completed.
        let _ignored = timeout(ABORT_MAX, upload.abort()).await;
    }
    sent.map(|()| Uploaded::Sent)
}

/// Whether the object is this very segment: as long, and with the same last page, whose seal has a checksum.
async fn is_there(
    remote: &Remote,
    store: &dyn ObjectStore,
    key: &Path,
    source: &mut Source<'_>,
) -> Result<bool, Failure> {
    match remote.request(REQUEST_MAX, store.head(key)).await {
        Ok(object) if object.size == source.bytes => {}
        Ok(_) | Err(Failure::Missing(_)) => return Ok(false),
        Err(failure) => return Err(failure),
    }
    // The table before it has the names: another segment has another one.
    let end = source.bytes.saturating_sub(2 * PAGE)..source.bytes;
    let theirs = remote.request(REQUEST_MAX, store.get_range(key, end.clone())).await?;
    Ok(theirs == source.read(end)?)
}

async fn send(
    remote: &Remote,
    upload: &mut dyn MultipartUpload,
    source: &mut Source<'_>,
) -> Result<(), Failure> {
    let mut parts: FuturesUnordered<UploadPart> = FuturesUnordered::new();
    let mut from = 0;
    while from < source.bytes {
        let until = source.bytes.min(from + remote.config.part_bytes);
        parts.push(upload.put_part(source.read(from..until)?.into()));
        from = until;
        while remote.config.parts_max <= parts.len() {
            finish(remote, &mut parts).await?;
        }
    }
    while !parts.is_empty() {
        finish(remote, &mut parts).await?;
    }
    remote.request(REQUEST_MAX, upload.complete()).await.map(|_| ())
}

/// Waits for one of the parts.
async fn finish(remote: &Remote, parts: &mut FuturesUnordered<UploadPart>) -> Result<(), Failure> {
    let count = u64::try_from(parts.len()).expect("some parts");
    remote.counters.parts_now.add(count);
    let done = remote.request(PART_MAX, async { parts.next().await.unwrap_or(Ok(())) }).await;
    remote.counters.parts_now.sub(count);
    done
}
