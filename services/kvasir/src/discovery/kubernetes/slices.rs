//! `EndpointSlices` as far as they say who is a member, and the members that follow from them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;

use crate::config::MemberConfig;
use crate::discovery::view::{Entries, Entry};
use crate::identity::MemberRole;

/// Most ranks of one pod.
const RANKS_MAX: u32 = 16;
/// Most pods of one role: ordinals from 0.
const ORDINALS_MAX: u32 = 6_000;
/// The first id of each role.
const ROLE_IDS: [(MemberRole, u32); 4] = [
    (MemberRole::Kvstore, 100_000),
    (MemberRole::Prefill, 200_000),
    (MemberRole::Decode, 300_000),
    (MemberRole::Router, 900_000),
];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) resource_version: Option<String>,
    pub(super) r#continue: Option<String>,
}

/// One slice. Of a bookmark only the version is there.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointSlice {
    #[serde(default)]
    pub(super) metadata: Metadata,
    address_type: Option<String>,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    hostname: Option<String>,
    target_ref: Option<TargetRef>,
}

/// What the API says of absent conditions: ready and serving count as true, terminating as false.
#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

/// All slices that there are now, by name.
pub(super) struct Slices {
    role_label: String,
    slices: BTreeMap<String, EndpointSlice>,
}

impl Slices {
    pub(super) fn new(role_label: &str) -> Self {
        Self { role_label: role_label.to_owned(), slices: BTreeMap::new() }
    }

    /// Takes the result of a list.
    pub(super) fn replace(&mut self, slices: Vec<EndpointSlice>) {
        self.slices.clear();
        for slice in slices {
            self.insert(slice);
        }
    }

    pub(super) fn insert(&mut self, slice: EndpointSlice) {
        self.slices.insert(slice.metadata.name.clone(), slice);
    }

    pub(super) fn remove(&mut self, slice: &EndpointSlice) {
        self.slices.remove(&slice.metadata.name);
    }

    /// The members of all slices. A pod in several slices, as with two families of addresses, is one member: the IPv4 address
    /// counts, and without one the first.
    pub(super) fn entries(&self) -> Entries {
        let mut entries = Entries::new();
        let mut slices: Vec<&EndpointSlice> = self.slices.values().collect();
        slices.sort_by_key(|slice| slice.address_type.as_deref() != Some("IPv4"));
        for slice in slices {
            let role = slice.metadata.labels.get(&self.role_label);
            for endpoint in slice.endpoints.iter().flatten() {
                if !endpoint.is_there() {
                    continue;
                }
                let role = role.map(String::as_str);
                for (name, entry) in endpoint.members(role, slice.ports.as_deref()) {
                    entries.entry(name).or_insert(entry);
                }
            }
        }
        entries
    }

    /// The names of members that are about to end.
    pub(super) fn ending(&self) -> BTreeSet<String> {
        let mut ending = BTreeSet::new();
        for slice in self.slices.values() {
            let endpoints = slice.endpoints.iter().flatten();
            for endpoint in endpoints.filter(|endpoint| endpoint.is_terminating()) {
                let members = endpoint.members(None, slice.ports.as_deref());
                ending.extend(members.into_iter().map(|(name, _)| name));
            }
        }
        ending
    }
}

impl Endpoint {
    /// Ready, or about to end. One that ends may say that it is not ready, so as to get nothing new, long before it is done.
    fn is_there(&self) -> bool {
        let Conditions { ready, serving, .. } = self.conditions;
        // Serving is ready without regard to ending; an API server that does not tell it has no better word than ready.
        let is_ready = serving.or(ready).unwrap_or(true) && ready.unwrap_or(true);
        self.is_terminating() || is_ready
    }

    fn is_terminating(&self) -> bool {
        self.conditions.terminating == Some(true)
    }

    /// One member for each rank that has a control port.
    fn members(&self, role: Option<&str>, ports: Option<&[Port]>) -> Vec<(String, Entry)> {
        let named = self.hostname.as_ref();
        let pod =
            named.or_else(|| self.target_ref.as_ref().and_then(|target| target.name.as_ref()));
        let Some(pod) = pod else {
            let shown = self.addresses.first().cloned().unwrap_or_default();
            let reason = "the endpoint has no hostname and no pod, so no name".to_owned();
            return vec![(shown, Err(reason))];
        };
        let port = |kind: &str, rank: u32| {
            let wanted = if rank == 0 { kind.to_owned() } else { format!("{kind}-{rank}") };
            let mut ports = ports.into_iter().flatten();
            ports.find(|port| port.name.as_ref() == Some(&wanted)).and_then(|port| port.port)
        };
        let mut members = Vec::new();
        for rank in 0..RANKS_MAX {
            let name = if rank == 0 { pod.clone() } else { format!("{pod}-rank{rank}") };
            let Some(control) = port("control", rank) else {
                if rank == 0 {
                    members.push((name, Err("the slice has no port named control".to_owned())));
                }
                continue;
            };
            let entry = self.member((pod, &name), role, rank, (control, port("data", rank)));
            members.push((name, entry));
        }
        members
    }

    fn member(
        &self,
        (pod, name): (&str, &str),
        role: Option<&str>,
        rank: u32,
        (control, data): (u16, Option<u16>),
    ) -> Entry {
        let role = role.ok_or("the slice has no label that says its role")?;
        let known = MemberRole::parse(role)
            .ok_or_else(|| format!("the label says the role {role}, which there is not"))?;
        let address = self.addresses.first().ok_or("the endpoint has no address")?;
        let address: IpAddr =
            address.parse().map_err(|_| format!("{address} is no address; names are not taken"))?;
        let at = |port| SocketAddr::new(address, port);
        Ok(MemberConfig {
            name: name.to_owned(),
            role: role.to_owned(),
            id: id(known, pod, rank)?,
            control: at(control),
            data: data.map(at).filter(|_| known != MemberRole::Router),
            // Operators reach it from its own pod only.
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, control)),
            listen: None,
            shm: None,
            disk: None,
        })
    }
}

/// The id of a member: the role's hundred thousand, 16 for each ordinal of the pod's name, the rank, and one. The member's own
/// file must say the same.
pub(super) fn id(role: MemberRole, pod: &str, rank: u32) -> Result<u32, String> {
    let (_, first) =
        ROLE_IDS.iter().find(|(known, _)| *known == role).expect("every role is there");
    let ordinal = pod.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<u32>().ok());
    let ordinal = ordinal.filter(|ordinal| *ordinal < ORDINALS_MAX).ok_or_else(|| {
        format!(
            "{pod} does not end with an ordinal below {ORDINALS_MAX}, as pods of a StatefulSet do"
        )
    })?;
    Ok(first + RANKS_MAX * ordinal + rank + 1)
}
