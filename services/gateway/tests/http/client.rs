//! A small HTTP/1.1 client that shows everything: bytes as they come, and connections that can be left in the middle.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    /// The payloads of the `data:` lines.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// Names and payloads of named events.
    pub(crate) fn named_events(&self) -> Vec<(&str, Value)> {
        let events = self.text().split("\n\n").filter_map(|event| event.strip_prefix("event: "));
        let parts = events.map(|event| event.split_once("\ndata: ").expect("a payload"));
        parts.map(|(name, data)| (name, serde_json::from_str(data).unwrap())).collect()
    }

    /// The chunks of a complete stream.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.text());
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// Sends a request on a connection of its own; the answer is still to be read.
pub(crate) async fn open(server: SocketAddr, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

pub(crate) async fn open_chat(server: SocketAddr, body: &Value) -> TcpStream {
    let body = serde_json::to_vec(body).unwrap();
    open(server, &head("POST", "/v1/chat/completions", body.len()), &body).await
}

pub(crate) fn head(method: &str, path: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Reads the answer to its end.
pub(crate) async fn read(stream: TcpStream) -> Reply {
    read_behind(stream, Vec::new()).await
}

/// Reads the answer to its end, whose beginning was read before.
pub(crate) async fn read_behind(mut stream: TcpStream, mut bytes: Vec<u8>) -> Reply {
    stream.read_to_end(&mut bytes).await.unwrap();
    parse(&bytes)
}

/// Reads until `part` has come; what was read.
pub(crate) async fn read_until(stream: &mut TcpStream, part: &str) -> Vec<u8> {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(part) {
        let mut buffer = [0; 1_024];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(0 < count, "ended before {part}: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    seen
}

pub(crate) async fn send(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Reply {
    read(open(server, &head(method, path, body.len()), body).await).await
}

pub(crate) async fn chat(server: SocketAddr, body: &Value) -> Reply {
    read(open_chat(server, body).await).await
}

pub(crate) async fn post(server: SocketAddr, path: &str, body: &Value) -> Reply {
    send(server, "POST", path, body.to_string().as_bytes()).await
}

fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut reply = Reply { status, head, body: bytes[end..].to_vec() };
    if reply.header("transfer-encoding") == Some("chunked") {
        reply.body = joined(&reply.body);
    }
    reply
}

fn joined(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
    body
}
