//! Who may call and read whom. Source: architecture.md §8.
//!
//! Everything not listed is refused; an unknown role never gets this far, because its certificate speaks for no member.

use std::fmt;

use super::MemberRole;

/// The services of the control plane, each served by the members that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// The handshake every connection begins with.
    Member,
    /// Answers, from a decode worker.
    Decode,
    /// Blocks of a prompt, from a prefill worker.
    Prefill,
    /// Lookups and offers, at a store node.
    Store,
    /// What a worker or store node tells about itself.
    Events,
    /// What a router has placed.
    Routers,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 6] =
        [Self::Member, Self::Decode, Self::Prefill, Self::Store, Self::Events, Self::Routers];

    /// The word used in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Member => "Member",
            Self::Decode => "Decode",
            Self::Prefill => "Prefill",
            Self::Store => "Store",
            Self::Events => "Events",
            Self::Routers => "Routers",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a member of role `caller` may call `service` wherever it is served.
#[must_use]
pub fn may_call(caller: MemberRole, service: Service) -> bool {
    match service {
        Service::Member => true,
        Service::Decode | Service::Events | Service::Routers => caller == MemberRole::Router,
        Service::Prefill => caller == MemberRole::Decode,
        Service::Store => matches!(caller, MemberRole::Decode | MemberRole::Prefill),
    }
}

/// Whether a member of role `reader` may read the registered regions of a member of role `owner`.
#[must_use]
pub fn may_read(reader: MemberRole, owner: MemberRole) -> bool {
    match reader {
        MemberRole::Router => false,
        MemberRole::Decode => matches!(owner, MemberRole::Prefill | MemberRole::Kvstore),
        MemberRole::Prefill => owner == MemberRole::Kvstore,
        MemberRole::Kvstore => {
            matches!(owner, MemberRole::Prefill | MemberRole::Decode | MemberRole::Kvstore)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MemberRole, Service, may_call, may_read};
    use crate::identity::MemberRole::{Decode, Kvstore, Prefill, Router};

    #[test]
    fn only_the_calls_of_the_design_are_allowed() {
        let mut allowed = vec![
            (Router, Service::Decode),
            (Router, Service::Events),
            (Router, Service::Routers),
            (Decode, Service::Prefill),
            (Decode, Service::Store),
            (Prefill, Service::Store),
        ];
        allowed.extend(MemberRole::ALL.map(|role| (role, Service::Member)));
        for caller in MemberRole::ALL {
            for service in Service::ALL {
                let expected = allowed.contains(&(caller, service));
                assert_eq!(may_call(caller, service), expected, "{caller} calls {service}");
            }
        }
    }

    #[test]
    fn only_the_reads_of_the_design_are_allowed() {
        let allowed = [
            (Decode, Prefill),
            (Decode, Kvstore),
            (Prefill, Kvstore),
            (Kvstore, Prefill),
            (Kvstore, Decode),
            (Kvstore, Kvstore),
        ];
        for reader in MemberRole::ALL {
            for owner in MemberRole::ALL {
                let expected = allowed.contains(&(reader, owner));
                assert_eq!(may_read(reader, owner), expected, "{reader} reads {owner}");
            }
        }
    }
}
