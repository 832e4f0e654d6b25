//! Reading over QUIC: one warm connection per peer, one stream per run of reads.
//!
//! A request is a version, a verb and descriptors; the answer is, per descriptor in the order asked, a status, a length
//! and that many bytes. The server holds a slot open only while it copies it into the stream's buffer, so a slow reader
//! holds no slot. The reader trusts nothing: it checks each length before and each checksum after, and asks the owner to
//! check its own copy when one is wrong.
//!
//! Start reading at `client.rs`, then `server.rs`; `settings.rs` has the numbers.

mod client;
mod server;
mod settings;

pub(super) use client::read;
pub(super) use server::serve;
pub(super) use settings::endpoint;

#[cfg(test)]
pub(super) use settings::{ALPN, MTU_MAX};

/// Why a connection or stream was ended by us, as the peer sees it.
pub(super) mod code {
    use quinn::VarInt;

    /// The transport is closing.
    pub(in crate::transport) const CLOSED: VarInt = VarInt::from_u32(1);
    /// The certificate may not read.
    pub(in crate::transport) const FORBIDDEN: VarInt = VarInt::from_u32(2);
    /// The request was malformed.
    pub(in crate::transport) const MALFORMED: VarInt = VarInt::from_u32(3);
    /// Nobody waits for the answer any more.
    pub(in crate::transport) const CANCELLED: VarInt = VarInt::from_u32(4);
}
