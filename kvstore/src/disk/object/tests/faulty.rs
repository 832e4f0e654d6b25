//! An object store that fails when it is told to.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use shared::ManualClock;

/// What goes wrong, and what was seen.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Nothing is answered but errors.
    pub(crate) down: AtomicBool,
    /// Reads never end.
    pub(crate) hanging: AtomicBool,
    /// Uploads are refused.
    pub(crate) refusing: AtomicBool,
    /// So many parts fail from now on.
    pub(crate) parts: AtomicU32,
    /// So many uploads fail at their last step.
    pub(crate) completions: AtomicU32,
    /// Uploads that were withdrawn.
    pub(crate) aborted: AtomicU32,
    /// Parts that were asked for.
    pub(crate) sent: AtomicU32,
    /// By how much each read moves the clock.
    clock: Mutex<Option<(Arc<ManualClock>, Duration)>>,
}

impl Faults {
    /// Each read takes so long, by this clock.
    pub(crate) fn on_get(&self, clock: &Arc<ManualClock>, takes: Duration) {
        *self.clock.lock() = Some((Arc::clone(clock), takes));
    }

    fn check(&self) -> Result<()> {
        if self.down.load(Ordering::SeqCst) { Err(broken("it is down")) } else { Ok(()) }
    }

    /// Whether one of a number of faults is used up.
    fn take(count: &AtomicU32) -> bool {
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

fn broken(why: &'static str) -> Error {
    Error::Generic { store: "faulty", source: why.into() }
}

/// The decorator.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        to: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.faults.check()?;
        self.inner.put_opts(to, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.faults.check()?;
        if self.faults.refusing.load(Ordering::SeqCst) {
            let path = to.to_string();
            return Err(Error::PermissionDenied { path, source: "no rights".into() });
        }
        let inner = self.inner.put_multipart_opts(to, options).await?;
        Ok(Box::new(Upload { inner, faults: Arc::clone(&self.faults) }))
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        self.faults.check()?;
        if !options.head {
            if let Some((clock, takes)) = &*self.faults.clock.lock() {
                clock.advance(*takes);
            }
            if self.faults.hanging.load(Ordering::SeqCst) {
                return pending().await;
            }
        }
        self.inner.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.faults.check() {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.faults.check() {
            Ok(()) => self.inner.list(prefix),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.faults.check()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.faults.check()?;
        self.inner.copy_opts(from, to, options).await
    }
}

/// An upload that fails when it is told to.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    faults: Arc<Faults>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, bytes: PutPayload) -> UploadPart {
        self.faults.sent.fetch_add(1, Ordering::SeqCst);
        if Faults::take(&self.faults.parts) {
            return Box::pin(async { Err(broken("a part was lost")) });
        }
        self.inner.put_part(bytes)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if Faults::take(&self.faults.completions) {
            return Err(broken("the last step failed"));
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.faults.aborted.fetch_add(1, Ordering::SeqCst);
        self.inner.abort().await
    }
}
