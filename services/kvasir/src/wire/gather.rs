//! A stream that puts what is written in one turn into one system call.
//!
//! HTTP/2 flushes after the head of a request, after its message and after its end, and each of these would be a segment
//! that wakes the peer. Here a flush first lets what else is ready on this thread run, and goes on once nothing was added.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are kept at most; more are sent on at once.
const KEPT_MAX: usize = 64 << 10;
/// Bytes from which a flush leaves no turn to others: a segment of the network, and more than a short request.
const WORTHWHILE: usize = 16 << 10;
/// Turns that a flush leaves to others at most.
const TURNS_MAX: u32 = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Gather<S> {
    inner: S,
    kept: Vec<u8>,
    /// Of `kept`, what was sent.
    sent: usize,
    is_gathering: bool,
    /// Something was written since the last flush began.
    grew: bool,
    /// Turns that this flush has left to others.
    turns: u32,
}

impl<S: AsyncWrite + Unpin> Gather<S> {
    /// Passes everything on at once, as a handshake needs it: the last word of one that fails is never flushed.
    pub(super) fn new(inner: S) -> Self {
        Self { inner, kept: Vec::new(), sent: 0, is_gathering: false, grew: false, turns: 0 }
    }

    /// Gathers from now on. For a connection whose tasks all run on one thread: elsewhere a turn that is left to others
    /// would wake another thread.
    pub(super) fn gather(&mut self) {
        self.is_gathering = true;
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.kept.len() {
            let rest = &self.kept[self.sent..];
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.kept.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if KEPT_MAX < self.kept.len() + bytes.len() {
            ready!(self.poll_send(context))?;
        }
        if !self.is_gathering || KEPT_MAX < bytes.len() {
            return Pin::new(&mut self.inner).poll_write(context, bytes);
        }
        self.kept.extend_from_slice(bytes);
        self.grew = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        if KEPT_MAX < self.kept.len() + bytes {
            ready!(self.poll_send(context))?;
        }
        if !self.is_gathering || KEPT_MAX < bytes {
            return Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        }
        for slice in slices {
            self.kept.extend_from_slice(slice);
        }
        self.grew = true;
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.grew && self.turns < TURNS_MAX && self.kept.len() < WORTHWHILE {
            self.grew = false;
            self.turns += 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_send(context))?;
        (self.grew, self.turns) = (false, 0);
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};

    use super::{Gather, KEPT_MAX, TURNS_MAX};

    fn gathering(near: DuplexStream) -> Gather<DuplexStream> {
        let mut gather = Gather::new(near);
        gather.gather();
        gather
    }

    #[tokio::test]
    async fn what_is_written_while_a_flush_waits_goes_with_it() {
        let (near, mut far) = duplex(1 << 20);
        let mut gather = gathering(near);
        let mut context = Context::from_waker(Waker::noop());
        for part in ["head", "message", "end"] {
            let half = part.len() / 2;
            let slices =
                [IoSlice::new(&part.as_bytes()[..half]), IoSlice::new(&part.as_bytes()[half..])];
            let written = Pin::new(&mut gather).poll_write_vectored(&mut context, &slices);
            assert!(matches!(written, Poll::Ready(Ok(count)) if count == part.len()));
            assert!(Pin::new(&mut gather).poll_flush(&mut context).is_pending(), "{part}");
        }
        assert!(Pin::new(&mut gather).poll_flush(&mut context).is_ready());
        let mut read = [0; 32];
        assert_eq!(far.read(&mut read).await.unwrap(), "headmessageend".len());
    }

    #[tokio::test]
    async fn a_flush_leaves_a_bounded_number_of_turns() {
        let (near, _far) = duplex(1 << 20);
        let mut gather = gathering(near);
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0;
        loop {
            assert!(Pin::new(&mut gather).poll_write(&mut context, b"more").is_ready());
            match Pin::new(&mut gather).poll_flush(&mut context) {
                Poll::Ready(flushed) => break flushed.unwrap(),
                Poll::Pending => turns += 1,
            }
        }
        assert_eq!(turns, TURNS_MAX);
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order_through_a_narrow_stream() {
        for turns in [true, false] {
            let (near, mut far) = duplex(1_000);
            let mut gather = if turns { gathering(near) } else { Gather::new(near) };
            let lengths = [1, 7, KEPT_MAX - 1, KEPT_MAX, KEPT_MAX + 1, 3 * KEPT_MAX, 5];
            let all: Vec<u8> = (0..=250).cycle().take(lengths.iter().sum()).collect();
            let sending = async {
                let mut rest = all.as_slice();
                for length in lengths {
                    let (now, later) = rest.split_at(length);
                    gather.write_all(now).await.unwrap();
                    rest = later;
                }
                gather.flush().await.unwrap();
                gather.shutdown().await.unwrap();
            };
            let mut read = Vec::new();
            let (_, count) = tokio::join!(sending, far.read_to_end(&mut read));
            assert_eq!(count.unwrap(), all.len());
            assert!(read == all);
        }
    }
}
