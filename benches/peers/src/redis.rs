//! Redis, by the least client that speaks its protocol: one connection, one buffer, no library between.
//!
//! A get copies the object into a place of its own, as ours does; single objects, then batches of 64 sent at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use serde_json::json;

use crate::figures::{float, now, objects, percentile, processor_seconds, scatter, wide};

const BATCH: usize = 64;

trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

struct Client {
    connection: Box<dyn Connection>,
    received: Vec<u8>,
    begin: usize,
    end: usize,
    sent: Vec<u8>,
}

/// Sets and gets `count` objects of `bytes` bytes, once to warm up and once measured. `place` is a socket's path or an
/// address, `server` the process whose time counts, too.
pub(crate) fn measure(
    place: &str,
    server: &str,
    count: usize,
    bytes: usize,
) -> anyhow::Result<Vec<String>> {
    let connection: Box<dyn Connection> = if place.contains('/') {
        Box::new(UnixStream::connect(place)?)
    } else {
        let stream = TcpStream::connect(place)?;
        stream.set_nodelay(true)?;
        Box::new(stream)
    };
    let kind = if place.contains('/') { "unix socket" } else { "TCP" };
    let received = vec![0; 1 << 20];
    let mut client = Client { connection, received, begin: 0, end: 0, sent: Vec::new() };
    let source = objects(count, bytes);
    let mut target = vec![vec![0; bytes]; count];
    let mut lines = Vec::new();
    for measured in [false, true] {
        for verb in ["put", "get"] {
            let mut singles = Vec::with_capacity(count);
            let mut go = |client: &mut Client, range: Range<usize>| match verb {
                "put" => client.set(range.start, &source[range]),
                _ => client.get(range.start, &mut target[range]),
            };
            for at in 0..count {
                let start = now();
                go(&mut client, at..at + 1)?;
                singles.push(start.elapsed().as_secs_f64() * 1e6);
            }
            let (cpu, start) = (processor_seconds(&[server])?, now());
            for at in (0..count).step_by(BATCH) {
                go(&mut client, at..count.min(at + BATCH))?;
            }
            let seconds = start.elapsed().as_secs_f64();
            let gigabytes = float(count * bytes) / 1e9;
            let line = json!({
                "who": format!("Redis, {kind}"), "verb": verb,
                "single_p50_us": percentile(&singles, 50), "single_p99_us": percentile(&singles, 99),
                "batch_objects_per_second": float(count) / seconds,
                "batch_gigabytes_per_second": gigabytes / seconds,
                "batch_cpu_seconds_per_gigabyte": (processor_seconds(&[server])? - cpu) / gigabytes,
            });
            if measured {
                lines.push(line.to_string());
            }
        }
    }
    ensure!(source == target, "Redis gave other bytes");
    Ok(lines)
}

impl Client {
    fn set(&mut self, first: usize, objects: &[Vec<u8>]) -> anyhow::Result<()> {
        self.sent.clear();
        for (object, at) in objects.iter().zip(first..) {
            let head =
                format!("*3\r\n$3\r\nSET\r\n$16\r\n{:016x}\r\n${}\r\n", key(at), object.len());
            self.sent.extend_from_slice(head.as_bytes());
            self.sent.extend_from_slice(object);
            self.sent.extend_from_slice(b"\r\n");
        }
        self.connection.write_all(&self.sent)?;
        for _ in objects {
            let line = self.line()?;
            ensure!(line == "+OK", "Redis says {line}");
        }
        Ok(())
    }

    fn get(&mut self, first: usize, targets: &mut [Vec<u8>]) -> anyhow::Result<()> {
        self.sent.clear();
        for (_, at) in targets.iter().zip(first..) {
            let question = format!("*2\r\n$3\r\nGET\r\n$16\r\n{:016x}\r\n", key(at));
            self.sent.extend_from_slice(question.as_bytes());
        }
        self.connection.write_all(&self.sent)?;
        for target in targets {
            let line = self.line()?;
            let length: usize = line.strip_prefix('$').context("no object")?.parse()?;
            ensure!(length == target.len(), "an object of {length} bytes");
            self.exact(target)?;
            ensure!(self.line()?.is_empty(), "an object has no end");
        }
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = Vec::new();
        loop {
            if self.begin == self.end {
                (self.begin, self.end) = (0, self.connection.read(&mut self.received)?);
                ensure!(self.end != 0, "Redis closed");
            }
            let rest = &self.received[self.begin..self.end];
            let length = rest.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&rest[..length.unwrap_or(rest.len())]);
            self.begin += length.map_or(rest.len(), |length| length + 1);
            if length.is_some() {
                return Ok(String::from_utf8(line)?.trim_end().to_owned());
            }
        }
    }

    /// What is in the buffer first, the rest straight from the connection.
    fn exact(&mut self, target: &mut [u8]) -> anyhow::Result<()> {
        let here = (self.end - self.begin).min(target.len());
        target[..here].copy_from_slice(&self.received[self.begin..self.begin + here]);
        self.begin += here;
        self.connection.read_exact(&mut target[here..])?;
        Ok(())
    }
}

fn key(index: usize) -> u64 {
    scatter(wide(index))
}
