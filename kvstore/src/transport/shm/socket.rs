//! Messages over a unix socket: a length of four bytes, then the message; a file may travel with its first byte.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::{cmsg_space, process};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::transport::wire::{CONTEXT_BYTES, DESCRIPTOR_BYTES};

/// Bytes of the longest message, a question, with room to spare.
const MESSAGE_BYTES_MAX: usize = 64 + CONTEXT_BYTES + DESCRIPTOR_BYTES;

/// Files received and not yet taken. One is expected at a time.
const FILES_MAX: usize = 2;

const LENGTH_BYTES: usize = 4;

/// One end of a connection.
pub(in crate::transport) struct Conversation {
    stream: UnixStream,
    received: Vec<u8>,
    files: VecDeque<OwnedFd>,
}

impl Conversation {
    /// Over a connected socket, when the process at its other end is of the same user.
    ///
    /// # Errors
    /// `PermissionDenied` when it is not.
    pub(in crate::transport) fn new(stream: UnixStream) -> io::Result<Self> {
        let (theirs, ours) = (stream.peer_cred()?.uid(), process::geteuid().as_raw());
        if theirs != ours {
            let refused = format!("the peer is of user {theirs}, not {ours}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, refused));
        }
        Ok(Self { stream, received: Vec::new(), files: VecDeque::new() })
    }

    /// Sends one message, with a file if there is one. Cancelling it breaks the conversation.
    ///
    /// # Errors
    /// When the other end is gone.
    pub(in crate::transport) async fn send(
        &mut self,
        message: &[u8],
        mut file: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "messages carry at most one object");
        let length = u32::try_from(message.len()).expect("bounded above");
        let bytes = [&length.to_be_bytes(), message].concat();
        let mut sent = 0;
        while sent < bytes.len() {
            self.stream.writable().await?;
            let part = &bytes[sent..];
            match self.stream.try_io(Interest::WRITABLE, || send_part(&self.stream, part, file)) {
                Ok(count) => {
                    sent += count;
                    file = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the next message. May be cancelled and called again.
    ///
    /// # Errors
    /// When the other end is gone, or sends too much.
    pub(in crate::transport) async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            self.stream.readable().await?;
            match self.stream.try_io(Interest::READABLE, || {
                receive_part(&self.stream, &mut self.received, &mut self.files)
            }) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the other end is still there and said nothing unasked. Never waits.
    pub(in crate::transport) fn is_quiet(&mut self) -> bool {
        let read = self.stream.try_io(Interest::READABLE, || {
            receive_part(&self.stream, &mut self.received, &mut self.files)
        });
        self.received.is_empty()
            && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The file that came with an earlier message.
    pub(in crate::transport) fn take_file(&mut self) -> Option<OwnedFd> {
        self.files.pop_front()
    }

    fn take_message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some((length, rest)) = self.received.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if MESSAGE_BYTES_MAX < length {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.received.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }
}

fn send_part(stream: &UnixStream, part: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)), "there is room for one");
    }
    Ok(sendmsg(stream, &[IoSlice::new(part)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive_part(
    stream: &UnixStream,
    received: &mut Vec<u8>,
    files: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut part = [0; 4_096];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut part)];
    let count = recvmsg(stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            files.extend(arrived);
        }
    }
    if FILES_MAX < files.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many files came"));
    }
    received.extend_from_slice(&part[..count]);
    Ok(count)
}
