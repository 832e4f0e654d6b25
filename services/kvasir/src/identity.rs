//! Who a member of the cluster is, how it proves it, and what that allows.
//!
//! One cluster authority signs one certificate per member, with one subject name `NAME.ROLE.kvasir`. Both the control
//! plane and the data plane take name and role from the certificate that TLS verified, never from what a peer says.
//!
//! What it deliberately is not: a public key infrastructure. There are no intermediate authorities and no revocation
//! lists; a member is put out by a new authority.
//!
//! Invariants: TLS 1.3 only and mutual; the provider is named, never the process default; private keys are files of mode
//! 0600; broken new material never replaces working old material.
//!
//! Start reading at [`MemberIdentity`], then [`Identity`], then [`may_call`].

mod access;
mod authority;
mod material;
mod outside;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustls::pki_types::CertificateDer;

pub use access::{Service, may_call, may_read};
pub use authority::{ClusterAuthority, MEMBER_DAYS, MemberFiles};
pub use material::{Identity, IdentityFiles, Reload};
pub(crate) use outside::outside_client;

/// The domain of every member's name.
const DOMAIN: &str = "kvasir";
/// Longest name of a member: one label of a domain name (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 63;

/// What a member does in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberRole {
    /// Front door and placement.
    Router,
    /// Computes blocks of prompts.
    Prefill,
    /// Answers.
    Decode,
    /// Keeps blocks.
    Kvstore,
}

impl MemberRole {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Router, Self::Prefill, Self::Decode, Self::Kvstore];

    /// The word used in certificates, configuration and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Kvstore => "kvstore",
        }
    }

    /// The role of a word, in lower case as [`MemberRole::as_str`] gives it.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A member's role and name. The name is one label of a domain name: lower-case letters, digits and inner hyphens, at
/// most 63 of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIdentity {
    role: MemberRole,
    name: String,
}

impl MemberIdentity {
    /// A member of this role and name.
    ///
    /// # Errors
    /// When the name is no label of a domain name in lower case.
    pub fn new(role: MemberRole, name: &str) -> Result<Self, IdentityError> {
        if is_label(name) {
            Ok(Self { role, name: name.to_owned() })
        } else {
            Err(IdentityError::Name { found: name.to_owned() })
        }
    }

    /// What it does.
    #[must_use]
    pub fn role(&self) -> MemberRole {
        self.role
    }

    /// What it is called, for example `decode-1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name in its certificate, under which TLS checks it: `NAME.ROLE.kvasir`.
    #[must_use]
    pub fn dns_name(&self) -> String {
        format!("{}.{}.{DOMAIN}", self.name, self.role)
    }

    /// The member that a certificate's name stands for; none when the name is not of the form `NAME.ROLE.kvasir`.
    #[must_use]
    pub fn from_dns_name(dns_name: &str) -> Option<Self> {
        let mut labels = dns_name.split('.');
        let (name, role, domain) = (labels.next()?, labels.next()?, labels.next()?);
        if labels.next().is_some() || domain != DOMAIN {
            return None;
        }
        Self::new(MemberRole::parse(role)?, name).ok()
    }
}

impl fmt::Display for MemberIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.role)
    }
}

/// The member a verified certificate chain speaks for: its first certificate has exactly one name, of the form
/// `NAME.ROLE.kvasir`. None for everything else. Verifies nothing by itself: take chains that TLS verified.
#[must_use]
pub fn member_of(certificates: &[CertificateDer<'_>]) -> Option<MemberIdentity> {
    let certificate = webpki::EndEntityCert::try_from(certificates.first()?).ok()?;
    let mut names = certificate.valid_dns_names();
    let member = MemberIdentity::from_dns_name(names.next()?)?;
    names.next().is_none().then_some(member)
}

/// Why identity material could not be made, read or taken.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A name cannot stand in a certificate.
    #[error(
        "\"{found}\" is no name of a member: use 1 to 63 lower-case letters, digits and inner hyphens, and not ca"
    )]
    Name {
        /// The name.
        found: String,
    },
    /// There is a cluster authority already.
    #[error("{} exists already: open it, or choose another folder", path.display())]
    Exists {
        /// Its file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file does not hold what it should, or does not fit the others.
    #[error("{}: {reason}", path.display())]
    Material {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificate on disk now speaks for another member.
    #[error("{} is the certificate of {found}, this process is {expected}", path.display())]
    AnotherMember {
        /// The file.
        path: PathBuf,
        /// Whose certificate it is.
        found: MemberIdentity,
        /// Whose it must be.
        expected: MemberIdentity,
    },
    /// A key or certificate could not be made.
    #[error("cannot make {what}: {reason}")]
    Make {
        /// What.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // The authority's own files are called so.
    name != "ca"
        && (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}
