//! Two hosts: network namespaces joined by a virtual cable with the MTU of an Ethernet. Needs the right to make them;
//! where that is missing the test says so and passes.

use std::net::Ipv4Addr;
use std::process::{Command, Output};

use kvasir::identity::MemberRole;
use serde_json::Value;

use super::hand::{Hand, Reads};
use super::view::{EXACT, SOON, long_prompt, until};

const COUNTS: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 1), (MemberRole::Prefill, 1), (MemberRole::Decode, 1)];
const MTU: &str = "1500";

/// A second host beside this one. Gone at the end, its cable with it.
struct Host {
    name: String,
    here: Ipv4Addr,
    there: Ipv4Addr,
}

fn ip(words: &[&str]) -> Result<Output, String> {
    let output = Command::new("ip").args(words).output();
    let output = output.map_err(|error| format!("ip cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

impl Host {
    fn new() -> Result<Self, String> {
        // Names and addresses by the process, so that two runs do not meet. 198.18.0.0/15 is for tests (RFC 2544).
        let process = std::process::id();
        let part = |shift: u32| u8::try_from((process >> shift) & 0xff).expect("one byte");
        let address =
            |last| Ipv4Addr::new(198, 18 | (part(14) & 1), part(6), (part(0) << 2) | last);
        let this = Self { name: format!("kv{process}"), here: address(1), there: address(2) };
        ip(&["netns", "add", &this.name])?;
        // From here on the drop removes what there is.
        let (near, far) = (format!("kvn{process}"), format!("kvf{process}"));
        let (here, there) = (format!("{}/30", this.here), format!("{}/30", this.there));
        ip(&["link", "add", &near, "mtu", MTU, "type", "veth", "peer", "name", &far, "mtu", MTU])?;
        ip(&["link", "set", &far, "netns", &this.name])?;
        ip(&["addr", "add", &here, "dev", &near])?;
        ip(&["link", "set", &near, "up"])?;
        let name = &this.name;
        ip(&["-n", name, "addr", "add", &there, "dev", &far])?;
        ip(&["-n", name, "link", "set", &far, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        Ok(this)
    }

    /// Words before a program's own that start it on this host.
    fn entry(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].map(str::to_owned).into()
    }

    /// What an admin listener of this host says.
    fn told(&self, port: u16, path: &str) -> Option<Value> {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let output = ip(&["netns", "exec", &self.name, "bash", "-c", &script]).ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            println!("{error}");
        }
    }
}

#[test]
fn a_cluster_spans_two_hosts() {
    let host = match Host::new() {
        Ok(host) => host,
        Err(reason) => return println!("skipped: no second host can be made here: {reason}"),
    };
    let mut cluster = Hand::plan(COUNTS, Reads::Quic, EXACT);
    let far = ["prefill-1", "kvstore-1"];
    for name in cluster.names() {
        let entry = host.entry();
        match far.contains(&name.as_str()) {
            true => cluster.place(&name, host.there, &entry),
            false => cluster.place(&name, host.here, &[]),
        }
    }
    let all = cluster.names();
    cluster.list(&all);
    for name in &all {
        cluster.start(name);
    }
    cluster.joined();
    for name in far {
        for other in ["router-1", "decode-1"] {
            until(&format!("{other} saw {name}"), SOON, || {
                let link = cluster.link(other, name);
                (link["state"] == "ready" && link["joined"] != false).then_some(())
            });
        }
    }
    let prompt = long_prompt("hosts", 190);
    let cold = cluster.answer(&prompt);
    assert!(0 < cold.bytes_fetched, "from the prefill worker: {cold:?}");
    let rest = |name: &str| {
        until(&format!("{name} is at rest"), SOON, || {
            let audit = match cluster.far_admin(name) {
                Some(port) => host.told(port, "/debug/audit")?,
                None => cluster.audit(name),
            };
            (audit["busy"] == 0).then_some(audit)
        })
    };
    all.iter().for_each(|name| assert_eq!(rest(name)["leaked"], 0, "{name}"));
    cluster.evict("device");
    let warm = cluster.answer(&prompt);
    assert_eq!(warm.text, cold.text);
    assert!(0 < warm.cached_tokens && 0 < warm.bytes_fetched, "from the store: {warm:?}");
    assert!(0.0 < cluster.metric("decode-1", "kvasir_kvstore_read_bytes_total{way=\"quic\"}"));
    all.iter().for_each(|name| assert_eq!(rest(name)["leaked"], 0, "{name}"));
}
