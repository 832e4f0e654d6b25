//! The smallest HTTP client that shows what a server does: one request per connection, HTTP/1.0, so that a body ends
//! where the connection does and nothing between the test and the bytes can hide a fault.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest silence of a server before a test fails instead of hanging.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A whole answer.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.body))
    }

    /// The message of an error in OpenAI's shape.
    pub(crate) fn error_message(&self) -> String {
        let message = self.json()["error"]["message"].as_str().map(str::to_owned);
        message.unwrap_or_else(|| panic!("no error object: {}", self.body))
    }
}

/// An answer that is still coming.
pub(crate) struct Open {
    pub(crate) status: u16,
    lines: BufReader<TcpStream>,
}

impl Open {
    /// The data of the next server-sent event; none when the server closed the stream.
    pub(crate) fn next_event(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).expect("the stream can be read");
            if read == 0 {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                return Some(data.trim_start().to_owned());
            }
        }
    }

    /// All events until the server closes the stream.
    pub(crate) fn events(mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next_event()).collect()
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    whole(open(address, "GET", path, ""))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Response {
    whole(open(address, "POST", path, body))
}

/// A request to a server that may not be there, or may go away.
pub(crate) fn try_request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<Response> {
    let mut open = try_open(address, method, path, body)?;
    let mut body = String::new();
    open.lines.read_to_string(&mut body)?;
    Ok(Response { status: open.status, body })
}

/// Sends a request and returns when the head of the answer is there. Dropping the result disconnects.
pub(crate) fn open(address: SocketAddr, method: &str, path: &str, body: &str) -> Open {
    try_open(address, method, path, body)
        .unwrap_or_else(|error| panic!("no answer to {method} {path}: {error}"))
}

fn try_open(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<Open> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    // A server that refuses a body by its length answers and closes before all of it is sent.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    if lines.read_line(&mut line)? == 0 {
        return Err(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
    }
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {line}"));
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            return Ok(Open { status, lines });
        }
    }
}

fn whole(mut open: Open) -> Response {
    let mut body = String::new();
    open.lines.read_to_string(&mut body).expect("the body can be read and is UTF-8");
    Response { status: open.status, body }
}

/// Sends a request and reads nothing. Dropping the result disconnects.
pub(crate) fn send(address: SocketAddr, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server accepts connections");
    let head = format!(
        "POST {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the head fits the socket");
    stream.write_all(body.as_bytes()).expect("the body fits the socket");
    stream
}

/// Sends a request and closes the connection without reading anything.
pub(crate) fn send_and_leave(address: SocketAddr, path: &str, body: &str) {
    drop(send(address, path, body));
}
