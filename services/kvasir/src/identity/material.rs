//! A member's own certificate and key, and the TLS configurations made of them.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvstore::DataTls;
use parking_lot::Mutex;
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, SupportedProtocolVersion};

use super::{IdentityError, MemberIdentity, may_read, member_of};

pub(super) const VERSIONS: [&SupportedProtocolVersion; 1] = [&TLS13];

/// Where a member's identity lies. All PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate of the cluster's authority.
    pub authority: PathBuf,
    /// The member's certificate.
    pub certificate: PathBuf,
    /// The member's private key.
    pub key: PathBuf,
}

/// What a look at the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// Nothing new, or the same fault as at the last look.
    Unchanged,
    /// New material was taken: connections made from now on use it, those that live go on.
    Taken,
}

/// A member's identity, as it is on disk now. Cheap to ask; share it behind an `Arc`.
pub struct Identity {
    files: IdentityFiles,
    member: MemberIdentity,
    current: Mutex<Arc<Material>>,
    /// The fault of the last look, so that it is reported once.
    fault: Mutex<Option<String>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("member", &self.member).finish_non_exhaustive()
    }
}

/// The bytes of the three files.
#[derive(PartialEq, Eq)]
struct Source {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

struct Material {
    source: Source,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Identity {
    /// Reads and checks a member's identity. Reads three small files; blocks for as long as that takes.
    ///
    /// # Errors
    /// When a file cannot be read, the key does not belong to the certificate, the authority did not sign it, it is not
    /// valid now, or it does not have exactly one name `NAME.ROLE.kvasir`.
    pub fn load(files: IdentityFiles) -> Result<Self, IdentityError> {
        let (member, material) = build(&files, Source::read(&files)?)?;
        let current = Mutex::new(Arc::new(material));
        Ok(Self { files, member, current, fault: Mutex::new(None) })
    }

    /// Who this process is. Never changes.
    #[must_use]
    pub fn member(&self) -> &MemberIdentity {
        &self.member
    }

    /// The configuration for connections that are accepted from now on: TLS 1.3, a certificate of the cluster's authority
    /// is demanded, no protocol names. Whoever speaks a protocol over it clones it and sets its name.
    #[must_use]
    pub fn tls_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.lock().server)
    }

    /// The configuration for connections that are made from now on: TLS 1.3, the server must have the name it is called
    /// by ([`MemberIdentity::dns_name`]), no protocol names.
    #[must_use]
    pub fn tls_client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.lock().client)
    }

    /// Looks at the files and takes what is new and good. Reads three small files; call it now and then, not per request.
    ///
    /// # Errors
    /// When the new material cannot be read or taken. The old material stays, and the same fault is reported once.
    pub fn reload_if_changed(&self) -> Result<Reload, IdentityError> {
        let result = self.reload();
        let mut fault = self.fault.lock();
        match result {
            Ok(reload) => {
                *fault = None;
                Ok(reload)
            }
            Err(error) => {
                let text = error.to_string();
                if fault.as_ref() == Some(&text) {
                    return Ok(Reload::Unchanged);
                }
                *fault = Some(text);
                Err(error)
            }
        }
    }

    fn reload(&self) -> Result<Reload, IdentityError> {
        let source = Source::read(&self.files)?;
        if self.current.lock().source == source {
            return Ok(Reload::Unchanged);
        }
        let (member, material) = build(&self.files, source)?;
        if member != self.member {
            return Err(IdentityError::AnotherMember {
                path: self.files.certificate.clone(),
                found: member,
                expected: self.member.clone(),
            });
        }
        *self.current.lock() = Arc::new(material);
        Ok(Reload::Taken)
    }
}

/// The data plane proves and checks identities as the control plane does.
impl DataTls for Identity {
    fn client(&self) -> Arc<ClientConfig> {
        self.tls_client()
    }

    fn server(&self) -> Arc<ServerConfig> {
        self.tls_server()
    }

    fn may_read(&self, certificates: &[CertificateDer<'_>]) -> bool {
        member_of(certificates).is_some_and(|reader| may_read(reader.role(), self.member.role()))
    }
}

impl Source {
    fn read(files: &IdentityFiles) -> Result<Self, IdentityError> {
        Ok(Self {
            authority: read(&files.authority)?,
            certificate: read(&files.certificate)?,
            key: read_private(&files.key)?,
        })
    }
}

/// A private key that others can read is no secret any more.
pub(super) fn read_private(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let io = |source| IdentityError::Read { path: path.to_path_buf(), source };
    let metadata = fs::metadata(path).map_err(io)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let reason = "others can read it; run chmod 600 on it".to_owned();
        return Err(IdentityError::Material { path: path.to_path_buf(), reason });
    }
    read(path)
}

fn build(
    files: &IdentityFiles,
    source: Source,
) -> Result<(MemberIdentity, Material), IdentityError> {
    let at =
        |path: &Path, reason: String| IdentityError::Material { path: path.to_path_buf(), reason };
    let roots = roots(&files.authority, &source.authority)?;
    let chain = certificates(&files.certificate, &source.certificate)?;
    let member = member_of(&chain).ok_or_else(|| {
        at(&files.certificate, "expected exactly one name of the form NAME.ROLE.kvasir".to_owned())
    })?;
    verify(&roots, &chain[0], &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&source.key)
        .map_err(|error| at(&files.key, error.to_string()))?;
    let misfit = |error: rustls::Error| at(&files.key, error.to_string());
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(misfit)?
        .with_client_cert_verifier(verifier(&roots, &files.authority)?)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(misfit)?;
    // Connections are few and live long: each proves itself anew, so that none outlives the material it began with.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(misfit)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(misfit)?;
    client.resumption = Resumption::disabled();
    Ok((member, Material { source, server: Arc::new(server), client: Arc::new(client) }))
}

/// Checks that the authority in a file accepts a member's certificate now.
pub(super) fn check_member(
    authority: &Path,
    certificate: &CertificateDer<'_>,
) -> Result<(), IdentityError> {
    verify(&roots(authority, &read(authority)?)?, certificate, authority)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| IdentityError::Read { path: path.to_path_buf(), source })
}

pub(super) fn certificates(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let fault = |reason| IdentityError::Material { path: path.to_path_buf(), reason };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| fault(error.to_string()))?;
    if found.is_empty() {
        return Err(fault("expected a certificate in PEM".to_owned()));
    }
    Ok(found)
}

pub(super) fn roots(path: &Path, pem: &[u8]) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| IdentityError::Material {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
    }
    Ok(Arc::new(roots))
}

fn verifier(
    roots: &Arc<RootCertStore>,
    path: &Path,
) -> Result<Arc<dyn ClientCertVerifier>, IdentityError> {
    WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider()).build().map_err(
        |error| IdentityError::Material { path: path.to_path_buf(), reason: error.to_string() },
    )
}

fn verify(
    roots: &Arc<RootCertStore>,
    certificate: &CertificateDer<'_>,
    path: &Path,
) -> Result<(), IdentityError> {
    let verified = verifier(roots, path)?.verify_client_cert(certificate, &[], UnixTime::now());
    verified.map(|_| ()).map_err(|error| IdentityError::Material {
        path: path.to_path_buf(),
        reason: format!("the cluster's authority does not accept it: {error}"),
    })
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
