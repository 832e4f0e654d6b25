//! The certificate of the public port. TLS 1.3 only: every client library of today has it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerConfig;
use rustls::version::TLS13;
use tokio_rustls::TlsAcceptor;

use crate::file_watch::FileWatch;

/// The one protocol inside.
const ALPN: &[u8] = b"http/1.1";

/// Certificate and key as they are in their files now.
pub(super) struct PublicTls {
    watch: FileWatch,
    current: Arc<ServerConfig>,
}

impl PublicTls {
    /// Reads both files. Blocks on them.
    ///
    /// # Errors
    /// When they cannot be used together.
    pub(super) fn open(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let watch = FileWatch::new(&[certificate, key]);
        Ok(Self { watch, current: load(certificate, key)? })
    }

    /// For connections that are accepted from now on.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current))
    }

    /// Takes the files if one of them changed. A fault is told once per change; of two files that are replaced one after the
    /// other the first one may be a fault. Blocks on them.
    pub(super) fn look(&mut self) -> Option<anyhow::Result<()>> {
        let loaded = self.watch.look(|paths| load(&paths[0], &paths[1]))?;
        Some(loaded.map(|config| self.current = config))
    }
}

fn load(certificate: &Path, key: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let (shown, shown_key) = (certificate.display(), key.display());
    let pem = fs::read(certificate).with_context(|| format!("{shown} cannot be read"))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{shown} is no PEM file of certificates"))?;
    ensure!(!chain.is_empty(), "{shown} has no certificate; it should be PEM");
    let metadata = fs::metadata(key).with_context(|| format!("{shown_key} cannot be read"))?;
    ensure!(
        metadata.permissions().mode() & 0o077 == 0,
        "{shown_key} can be read by others; run chmod 600 on it"
    );
    let pem = fs::read(key).with_context(|| format!("{shown_key} cannot be read"))?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .with_context(|| format!("{shown_key} has no private key; it should be PEM"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .context("TLS 1.3 is not there")?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("{shown} and {shown_key} cannot be used together"))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}
