use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::TlsConnector;

use super::Counts;
use super::tls::PublicTls;

/// A certificate of its own authority and its key, put into a folder.
fn write(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let paths = (folder.join("public.pem"), folder.join("public.key"));
    fs::write(&paths.0, certificate.pem()).unwrap();
    fs::write(&paths.1, key.serialize_pem()).unwrap();
    fs::set_permissions(&paths.1, fs::Permissions::from_mode(0o600)).unwrap();
    paths
}

/// Whether a client that trusts the certificate in that file gets through.
async fn is_trusted(tls: &PublicTls, certificate: &Path, name: &'static str) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = duplex(1 << 14);
    let server = async {
        let mut stream = tls.acceptor().accept(far).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await
    };
    let client = async {
        let name = ServerName::try_from(name).unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, near).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map(|_| text)
    };
    let (_, read) = tokio::join!(server, client);
    read.is_ok_and(|text| text == "hello")
}

#[tokio::test]
async fn a_replaced_certificate_is_taken_and_a_bad_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = write(folder.path(), "old.example");
    let mut tls = PublicTls::open(&certificate, &key).unwrap();
    let old = folder.path().join("old.pem");
    fs::copy(&certificate, &old).unwrap();
    assert!(is_trusted(&tls, &old, "old.example").await);
    assert!(tls.look().is_none());
    fs::write(&certificate, "nonsense").unwrap();
    let error = format!("{:#}", tls.look().unwrap().unwrap_err());
    assert!(error.contains("public.pem") && !error.contains('\n'), "{error}");
    assert!(tls.look().is_none(), "it is told once");
    assert!(is_trusted(&tls, &old, "old.example").await, "the one before stays");
    write(folder.path(), "new.example");
    tls.look().unwrap().unwrap();
    assert!(is_trusted(&tls, &certificate, "new.example").await);
    assert!(!is_trusted(&tls, &old, "old.example").await);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = write(folder.path(), "a.example");
    let fault = |certificate: &Path, key: &Path| match PublicTls::open(certificate, key) {
        Ok(_) => panic!("taken"),
        Err(error) => format!("{error:#}"),
    };
    assert!(fault(&folder.path().join("none"), &key).contains("none cannot be read"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(fault(&certificate, &key).contains("chmod 600"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(fault(&certificate, &key).contains("cannot be used together"));
}

#[test]
fn figures_are_text_of_prometheus() {
    let mut text = String::new();
    Counts::default().write(7, &mut text);
    assert!(text.contains("kvasir_http_connections 0\n"));
    assert!(text.contains("kvasir_http_connections_max 7\n") && text.ends_with(" 0\n"));
}
