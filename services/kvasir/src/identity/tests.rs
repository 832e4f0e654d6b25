use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::{
    ClusterAuthority, Identity, IdentityError, IdentityFiles, MemberIdentity, MemberRole, Reload,
};
use crate::clock::SystemClock;

fn authority() -> (TempDir, ClusterAuthority) {
    let folder = tempfile::tempdir().unwrap();
    let made = ClusterAuthority::create(folder.path(), Arc::new(SystemClock::start())).unwrap();
    (folder, made)
}

fn files(folder: &Path, name: &str) -> IdentityFiles {
    IdentityFiles {
        authority: folder.join("ca.pem"),
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    }
}

fn fault(result: Result<impl Sized, IdentityError>) -> String {
    match result {
        Ok(_) => panic!("expected a fault"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn names_are_labels_and_come_back_from_certificates() {
    for role in MemberRole::ALL {
        assert_eq!(MemberRole::parse(role.as_str()), Some(role));
        let member = MemberIdentity::new(role, "a-1").unwrap();
        assert_eq!(MemberIdentity::from_dns_name(&member.dns_name()), Some(member));
    }
    let long = "x".repeat(64);
    for name in ["", "A", "-a", "a-", "a.b", "a_b", "ä", long.as_str()] {
        assert!(MemberIdentity::new(MemberRole::Decode, name).is_err(), "{name}");
    }
    for name in
        ["a.decode", "a.decode.kvasir.x", "a.vision.kvasir", "a.decode.other", "*.decode.kvasir"]
    {
        assert_eq!(MemberIdentity::from_dns_name(name), None, "{name}");
    }
}

#[test]
fn an_issued_identity_loads_and_its_secrets_are_private() {
    let (folder, authority) = authority();
    authority.issue(MemberRole::Decode, "decode-1").unwrap();
    let identity = Identity::load(files(folder.path(), "decode-1")).unwrap();
    assert_eq!(identity.member().dns_name(), "decode-1.decode.kvasir");
    for name in ["ca.key", "decode-1.key"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing else is left behind");
}

#[test]
fn an_authority_is_made_once_and_opened_again() {
    let (folder, _) = authority();
    let clock = Arc::new(SystemClock::start());
    let again = ClusterAuthority::create(folder.path(), Arc::clone(&clock) as _);
    assert!(fault(again).contains("exists already"));
    let opened = ClusterAuthority::open(folder.path(), Arc::clone(&clock) as _).unwrap();
    opened.issue(MemberRole::Kvstore, "store-1").unwrap();
    assert!(Identity::load(files(folder.path(), "store-1")).is_ok());
    let (other, _) = authority();
    fs::copy(other.path().join("ca.key"), folder.path().join("ca.key")).unwrap();
    let mixed = ClusterAuthority::open(folder.path(), clock).unwrap();
    assert!(fault(mixed.issue(MemberRole::Kvstore, "store-2")).contains("does not accept"));
}

#[test]
fn material_that_does_not_fit_is_refused_by_file() {
    let (folder, authority) = authority();
    let (other, foreign) = self::authority();
    authority.issue(MemberRole::Decode, "a").unwrap();
    authority.issue(MemberRole::Decode, "b").unwrap();
    foreign.issue(MemberRole::Decode, "c").unwrap();
    let whole = files(folder.path(), "a");
    let no_certificate = IdentityFiles { certificate: whole.key.clone(), ..whole.clone() };
    let no_key = IdentityFiles { key: whole.certificate.clone(), ..whole.clone() };
    let another_key = IdentityFiles { key: folder.path().join("b.key"), ..whole.clone() };
    let foreign = IdentityFiles { authority: whole.authority.clone(), ..files(other.path(), "c") };
    let missing = IdentityFiles { key: folder.path().join("x.key"), ..whole.clone() };
    let authority_as_member = IdentityFiles { certificate: whole.authority.clone(), ..whole };
    let cases = [
        (no_certificate, "a.key: expected a certificate"),
        (no_key, "a.pem: "),
        (another_key, "b.key: "),
        (foreign, "c.pem: the cluster's authority does not accept it"),
        (missing, "cannot read "),
        (authority_as_member, "ca.pem: expected exactly one name"),
    ];
    for (files, expected) in cases {
        let found = fault(Identity::load(files));
        assert!(found.contains(expected), "{found} should contain {expected}");
    }
}

#[test]
fn new_material_is_taken_and_broken_material_is_reported_once() {
    let (folder, authority) = authority();
    authority.issue(MemberRole::Decode, "a").unwrap();
    let identity = Identity::load(files(folder.path(), "a")).unwrap();
    let first = identity.tls_server();
    assert_eq!(identity.reload_if_changed().unwrap(), Reload::Unchanged);
    assert!(Arc::ptr_eq(&first, &identity.tls_server()));

    authority.issue(MemberRole::Decode, "a").unwrap();
    assert_eq!(identity.reload_if_changed().unwrap(), Reload::Taken);
    let second = identity.tls_server();
    assert!(!Arc::ptr_eq(&first, &second));

    fs::write(folder.path().join("a.pem"), "half a certif").unwrap();
    assert!(fault(identity.reload_if_changed()).contains("a.pem"));
    assert_eq!(identity.reload_if_changed().unwrap(), Reload::Unchanged, "reported once");
    assert!(Arc::ptr_eq(&second, &identity.tls_server()), "the old material stays");

    authority.issue(MemberRole::Prefill, "a").unwrap();
    assert!(fault(identity.reload_if_changed()).contains("is the certificate of a (prefill)"));
    assert!(Arc::ptr_eq(&second, &identity.tls_server()));

    authority.issue(MemberRole::Decode, "a").unwrap();
    assert_eq!(identity.reload_if_changed().unwrap(), Reload::Taken);
}
