//! Proving oneself to, and checking, services that are not members: those that discovery asks.

use std::path::Path;
use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use super::IdentityError;
use super::material::{VERSIONS, certificates, provider, read, read_private, roots};

/// TLS 1.3 towards a server whose certificate an authority in a file has signed, with or without a certificate and key of
/// one's own. Reads the files; blocks for as long as that takes.
///
/// # Errors
/// When a file cannot be read or does not hold what it should.
pub(crate) fn outside_client(
    authority: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let at =
        |path: &Path, reason: String| IdentityError::Material { path: path.to_path_buf(), reason };
    let roots = roots(authority, &read(authority)?)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| at(authority, error.to_string()))?
        .with_root_certificates(roots);
    let mut client = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, &read(certificate)?)?;
            let pair = PrivateKeyDer::from_pem_slice(&read_private(key)?)
                .map_err(|error| at(key, error.to_string()))?;
            builder
                .with_client_auth_cert(chain, pair)
                .map_err(|error| at(key, error.to_string()))?
        }
    };
    client.resumption = Resumption::disabled();
    Ok(Arc::new(client))
}
