//! The cluster's authority: one key that signs the certificates of members.
//!
//! It lives in a folder as `ca.pem` and `ca.key`. Only who starts or extends a cluster needs the key; members need
//! `ca.pem` alone.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use shared::Clock;

use super::material::{check_member, read};
use super::{IdentityError, MemberIdentity, MemberRole};

/// Validity of a member's certificate in days. A cluster that lives longer gives its members new files, which they take
/// without restart.
pub const MEMBER_DAYS: u64 = 365;
/// Validity of the authority in days: it outlives every certificate it signs in the first nine years.
const AUTHORITY_DAYS: u64 = 3_650;
/// Certificates are valid from this long before they were made, for members whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3_600);
/// Readable by the owner alone.
const SECRET: u32 = 0o600;
/// Readable by everybody.
const PUBLIC: u32 = 0o644;

/// The files of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFiles {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM, mode 0600.
    pub key: PathBuf,
}

/// An authority whose key is at hand.
pub struct ClusterAuthority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAuthority").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl ClusterAuthority {
    /// Makes a new authority, valid for ten years, as `ca.pem` and `ca.key` (mode 0600) in an existing folder.
    ///
    /// # Errors
    /// When there is one already, or the files cannot be written.
    pub fn create(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        let key = new_key()?;
        let certificate = authority_params(clock.as_ref())
            .self_signed(&key)
            .map_err(|error| make("the cluster authority", &error))?;
        // The key first: what exists already is found before anything is changed.
        write_new(&folder.join("ca.key"), key.serialize_pem().as_bytes(), SECRET)?;
        write_new(&folder.join("ca.pem"), certificate.pem().as_bytes(), PUBLIC)?;
        Ok(Self::with_key(folder, key, clock))
    }

    /// Takes the authority that [`ClusterAuthority::create`] made in this folder.
    ///
    /// # Errors
    /// When a file cannot be read or holds no key. A key that does not belong to `ca.pem` shows when the first
    /// certificate is issued.
    pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        let path = folder.join("ca.key");
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        let key = KeyPair::from_pem(&text)
            .map_err(|error| IdentityError::Material { path, reason: error.to_string() })?;
        Ok(Self::with_key(folder, key, clock))
    }

    fn with_key(folder: &Path, key: KeyPair, clock: Arc<dyn Clock>) -> Self {
        let issuer = Issuer::new(authority_params(clock.as_ref()), key);
        Self { folder: folder.to_path_buf(), issuer, clock }
    }

    /// The certificate that members verify each other by.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Makes a key and a certificate for a member, valid for [`MEMBER_DAYS`], as `NAME.pem` and `NAME.key` (mode 0600) in
    /// the authority's folder. Files of this name are replaced, each in one step, the key first: a member that reads in
    /// between sees a pair that does not fit, keeps what it has and reads again.
    ///
    /// # Errors
    /// When the name cannot stand in a certificate, the files cannot be written, or `ca.pem` does not accept the result.
    pub fn issue(&self, role: MemberRole, name: &str) -> Result<MemberFiles, IdentityError> {
        let member = MemberIdentity::new(role, name)?;
        let key = new_key()?;
        let certificate = member_params(&member, self.clock.as_ref())?
            .signed_by(&key, &self.issuer)
            .map_err(|error| make("a member's certificate", &error))?;
        check_member(&self.certificate(), certificate.der())?;
        let files = MemberFiles {
            certificate: self.folder.join(format!("{name}.pem")),
            key: self.folder.join(format!("{name}.key")),
        };
        replace(&files.key, key.serialize_pem().as_bytes(), SECRET)?;
        replace(&files.certificate, certificate.pem().as_bytes(), PUBLIC)?;
        Ok(files)
    }
}

fn authority_params(clock: &dyn Clock) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("kvasir cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, clock, AUTHORITY_DAYS);
    params
}

fn member_params(
    member: &MemberIdentity,
    clock: &dyn Clock,
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(vec![member.dns_name()])
        .map_err(|error| make("a member's certificate", &error))?;
    params.distinguished_name = common_name(&member.dns_name());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, clock, MEMBER_DAYS);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, clock: &dyn Clock, days: u64) {
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(clock.unix_seconds());
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::from_secs(days * 24 * 3_600);
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate().map_err(|error| make("a key", &error))
}

fn make(what: &'static str, error: &rcgen::Error) -> IdentityError {
    IdentityError::Make { what, reason: error.to_string() }
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), IdentityError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened.and_then(|mut file| file.write_all(content)).map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => IdentityError::Exists { path: path.to_path_buf() },
        _ => IdentityError::Write { path: path.to_path_buf(), source },
    })
}

/// Puts a file in place of an older one, so that readers see either of them whole.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), IdentityError> {
    let mut new = path.to_path_buf().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let failed = |source| IdentityError::Write { path: path.to_path_buf(), source };
    match fs::remove_file(&new) {
        Err(source) if source.kind() != ErrorKind::NotFound => return Err(failed(source)),
        _ => {}
    }
    write_new(&new, content, mode)?;
    fs::rename(&new, path).map_err(failed)
}
