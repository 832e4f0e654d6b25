//! Encryption at rest: payloads are sealed with AES-256-GCM, with a key of their own for each tenant. Whoever deletes the
//! key deletes the tenant: its bytes are noise from then on, in every segment, snapshot and backup that lacks the key.
//!
//! A key is a file `TAG.key` of 32 random bytes in a folder that nobody else may read, best on another device than the
//! segments. It is made when a tenant's first block is written, and durable before that block is. The nonce is random: after
//! 2^32 blocks of one tenant, 489 TB of Flash blocks, two are equal with probability 2^-32. Name, kind, tenant, length and
//! exactness are authenticated with the payload, so that sealed payloads cannot change places.
//!
//! Keys are never printed or logged. What is read from a file is overwritten behind its use; what the cipher made of it
//! stays in memory while the key is loaded.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use shared::TenantTag;

use super::format::{NONCE_BYTES, RecordHeader, RecordKind, Sealing};
use super::segment::sync_folder;

const KEY_BYTES: usize = 32;
/// Keys in memory at most, some KiB each.
pub(super) const LOADED_MAX: usize = 4_096;
/// What anyone but the owner may do with a file.
const OTHERS: u32 = 0o077;
const AAD_BYTES: usize = 16 + 8 + 4 + 1;

/// Why a payload was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// There is no key: the tenant was deleted.
    NoKey,
    /// The payload is not what was sealed, or was sealed with another key.
    Forged,
    /// The system does not give the key now.
    Refused,
}

/// One key. Neither printable nor comparable.
struct Key(LessSafeKey);

/// The keys of all tenants in a folder. Calls block for the folder's drive when a key is not loaded.
pub(super) struct TenantKeys {
    folder: PathBuf,
    random: SystemRandom,
    /// Held while files are read, made and deleted, so that no deleted key comes back.
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    /// With the number of their last use.
    keys: HashMap<TenantTag, (Arc<Key>, u64)>,
    uses: u64,
}

impl TenantKeys {
    /// Uses a folder, and makes it when it is missing.
    ///
    /// # Errors
    /// When it cannot be made or read, or others may read it.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        refuse_others(&fs::metadata(folder)?, "chmod 700")?;
        let (folder, random) = (folder.to_owned(), SystemRandom::new());
        Ok(Self { folder, random, loaded: Mutex::default() })
    }

    /// Encrypts a payload in place, and says how in its record header. Makes the tenant's key when there is none.
    ///
    /// # Errors
    /// When the key cannot be read or made: the payload must not be written then.
    pub(super) fn seal(&self, header: &mut RecordHeader, payload: &mut [u8]) -> io::Result<()> {
        let key = match self.key(header.tenant)? {
            Some(key) => key,
            None => self.make(header.tenant)?,
        };
        let mut nonce = [0; NONCE_BYTES];
        self.random.fill(&mut nonce).map_err(|_| io::Error::other("no random bytes"))?;
        let tag = key
            .0
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(authenticated(header)),
                payload,
            )
            .map_err(|_| io::Error::other("a payload is too long to be encrypted"))?;
        let tag = tag.as_ref().try_into().expect("a tag has 16 bytes");
        header.sealing = Some(Sealing { nonce, tag });
        header.checksum = crc32c::crc32c(payload);
        Ok(())
    }

    /// Decrypts a payload in place; after an error its bytes are undefined.
    pub(super) fn open_payload(
        &self,
        header: &RecordHeader,
        sealing: &Sealing,
        payload: &mut [u8],
    ) -> Result<(), OpenError> {
        let key = self.key(header.tenant).map_err(|_| OpenError::Refused)?;
        let key = key.ok_or(OpenError::NoKey)?;
        let nonce = Nonce::assume_unique_for_key(sealing.nonce);
        let (aad, tag) = (Aad::from(authenticated(header)), Tag::from(sealing.tag));
        let opened = key.0.open_in_place_separate_tag(nonce, aad, tag, payload, 0..);
        opened.map(|_| ()).map_err(|_| OpenError::Forged)
    }

    /// Deletes a tenant's key for good; one that is not there is no error. Durable on return.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn delete(&self, tenant: TenantTag) -> io::Result<()> {
        let mut loaded = self.loaded.lock();
        loaded.keys.remove(&tenant);
        delete_key(&self.folder, tenant)
    }

    /// Keys in memory.
    pub(super) fn loaded(&self) -> usize {
        self.loaded.lock().keys.len()
    }

    /// The tenant's key, if there is one.
    fn key(&self, tenant: TenantTag) -> io::Result<Option<Arc<Key>>> {
        let mut loaded = self.loaded.lock();
        loaded.uses += 1;
        let now = loaded.uses;
        if let Some((key, used)) = loaded.keys.get_mut(&tenant) {
            *used = now;
            return Ok(Some(Arc::clone(key)));
        }
        let Some(mut bytes) = read_key(&path(&self.folder, tenant))? else { return Ok(None) };
        let key = loaded.keep(tenant, &bytes);
        wipe(&mut bytes);
        Ok(Some(key))
    }

    fn make(&self, tenant: TenantTag) -> io::Result<Arc<Key>> {
        let mut loaded = self.loaded.lock();
        // Written whole under another name first: a crash leaves no half of a key.
        let new = self.folder.join(format!("{tenant}.new"));
        let mut bytes = [0; KEY_BYTES];
        self.random.fill(&mut bytes).map_err(|_| io::Error::other("no random bytes"))?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, path(&self.folder, tenant))?;
            sync_folder(&self.folder)
        });
        let key = written.map(|()| loaded.keep(tenant, &bytes));
        wipe(&mut bytes);
        key
    }
}

impl Loaded {
    /// Keeps a key; the one that was not used for longest leaves when there are too many.
    fn keep(&mut self, tenant: TenantTag, bytes: &[u8; KEY_BYTES]) -> Arc<Key> {
        if LOADED_MAX <= self.keys.len()
            && let Some(oldest) = self.keys.iter().min_by_key(|(_, (_, used))| *used)
        {
            let oldest = *oldest.0;
            self.keys.remove(&oldest);
        }
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("the key has the cipher's length");
        let key = Arc::new(Key(LessSafeKey::new(key)));
        self.keys.insert(tenant, (Arc::clone(&key), self.uses));
        key
    }
}

/// Deletes the file of a tenant's key; one that is not there is no error. Durable on return.
pub(super) fn delete_key(folder: &Path, tenant: TenantTag) -> io::Result<()> {
    let path = path(folder, tenant);
    match OpenOptions::new().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Overwritten first, for drives that write in place; the removal alone is what is promised.
        opened => opened.and_then(|mut file| {
            file.write_all(&[0; KEY_BYTES])?;
            file.sync_all()
        })?,
    }
    fs::remove_file(&path)?;
    sync_folder(folder)
}

fn path(folder: &Path, tenant: TenantTag) -> PathBuf {
    folder.join(format!("{tenant}.key"))
}

fn read_key(path: &Path) -> io::Result<Option<[u8; KEY_BYTES]>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    refuse_others(&file.metadata()?, "chmod 600")?;
    let mut bytes = [0; KEY_BYTES];
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn refuse_others(metadata: &fs::Metadata, mend: &str) -> io::Result<()> {
    let mode = metadata.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let text = format!("others may use it (mode {:o}); {mend} it", mode & 0o777);
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// What is authenticated beside the payload.
fn authenticated(header: &RecordHeader) -> [u8; AAD_BYTES] {
    let mut bytes = [0; AAD_BYTES];
    bytes[..16].copy_from_slice(&header.name.0);
    bytes[16..24].copy_from_slice(&header.tenant.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&header.bytes.to_le_bytes());
    bytes[28] = u8::from(header.exact) | u8::from(header.kind == RecordKind::Media) << 1;
    bytes
}

/// Overwrites a key that is not used any more.
fn wipe(bytes: &mut [u8; KEY_BYTES]) {
    bytes.fill(0);
    // So that the compiler does not take the writes for useless.
    black_box(bytes);
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io;
    use std::os::unix::fs::PermissionsExt;

    use shared::{BlockName, TenantTag};

    use super::{LOADED_MAX, OpenError, TenantKeys};
    use crate::disk::format::{RecordHeader, RecordKind};

    const PLAIN: [u8; 64] = [0x5a; 64];

    fn header(tenant: u64) -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Block,
            exact: true,
            segment: 1,
            page: 2,
            bytes: 64,
            checksum: 0,
            written_unix_seconds: 3,
            name: BlockName([4; 16]),
            tenant: TenantTag(tenant),
            sealing: None,
        }
    }

    fn sealed(keys: &TenantKeys, tenant: u64) -> (RecordHeader, Vec<u8>) {
        let (mut header, mut payload) = (header(tenant), PLAIN.to_vec());
        keys.seal(&mut header, &mut payload).unwrap();
        assert!(payload != PLAIN && header.checksum == crc32c::crc32c(&payload));
        (header, payload)
    }

    fn open(keys: &TenantKeys, header: &RecordHeader, payload: &[u8]) -> Result<(), OpenError> {
        let mut payload = payload.to_vec();
        keys.open_payload(header, &header.sealing.unwrap(), &mut payload)?;
        assert_eq!(payload, PLAIN);
        Ok(())
    }

    #[test]
    fn what_was_sealed_opens_after_a_restart_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let (header, payload) = sealed(&TenantKeys::open(&path).unwrap(), 7);
        let keys = TenantKeys::open(&path).unwrap();
        assert_eq!(open(&keys, &header, &payload), Ok(()));
        let (again, other) = sealed(&keys, 7);
        assert!(again.sealing != header.sealing && other != payload, "a nonce is used once");
        let mut flipped = payload.clone();
        flipped[9] ^= 1;
        assert_eq!(open(&keys, &header, &flipped), Err(OpenError::Forged));
        sealed(&keys, 8);
        let cases = [
            RecordHeader { name: BlockName([5; 16]), ..header },
            RecordHeader { exact: false, ..header },
            RecordHeader { tenant: TenantTag(8), ..header },
            RecordHeader { sealing: again.sealing, ..header },
        ];
        for other in cases {
            assert_eq!(open(&keys, &other, &payload), Err(OpenError::Forged), "{other:?}");
        }
        let unknown = RecordHeader { tenant: TenantTag(9), ..header };
        assert_eq!(open(&keys, &unknown, &payload), Err(OpenError::NoKey));
    }

    #[test]
    fn a_deleted_key_opens_nothing_and_a_new_one_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let keys = TenantKeys::open(&folder.path().join("keys")).unwrap();
        let (header, payload) = sealed(&keys, 7);
        keys.delete(TenantTag(7)).unwrap();
        keys.delete(TenantTag(7)).unwrap();
        assert_eq!(open(&keys, &header, &payload), Err(OpenError::NoKey));
        sealed(&keys, 7);
        assert_eq!(open(&keys, &header, &payload), Err(OpenError::Forged));
    }

    #[test]
    fn keys_that_others_may_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = TenantKeys::open(&path).unwrap();
        let (header, payload) = sealed(&keys, 7);
        let file = path.join(format!("{}.key", TenantTag(7)));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let keys = TenantKeys::open(&path).unwrap();
        assert_eq!(open(&keys, &header, &payload), Err(OpenError::Refused));
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        let refused = TenantKeys::open(&path).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn loaded_keys_are_bounded_and_come_back_from_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let keys = TenantKeys::open(&folder.path().join("keys")).unwrap();
        let (header, payload) = sealed(&keys, 0);
        for tenant in 1..=u64::try_from(LOADED_MAX).unwrap() {
            keys.loaded.lock().keep(TenantTag(tenant), &[1; 32]);
        }
        assert_eq!(keys.loaded(), LOADED_MAX);
        assert_eq!(open(&keys, &header, &payload), Ok(()));
        assert_eq!(keys.loaded(), LOADED_MAX);
    }
}
