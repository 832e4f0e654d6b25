//! Who may ask why a single request was placed where it was: the key of an operator's file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use gateway::EvidencePolicy;

use super::ExplainConfig;

/// Shortest key that is taken.
const KEY_CHARACTERS_MIN: usize = 16;

/// Who gets the header `x-kvasir-routing`. Reads the key's file, so it blocks.
///
/// # Errors
/// When the file cannot be read, can be read by others, or holds no key.
pub(crate) fn policy(config: &ExplainConfig) -> anyhow::Result<EvidencePolicy> {
    if config.evidence_header {
        return Ok(EvidencePolicy::everybody());
    }
    if config.admin_key_file.as_os_str().is_empty() {
        return Ok(EvidencePolicy::NOBODY);
    }
    key(&config.admin_key_file).map(|key| EvidencePolicy::with_key(&key))
}

fn key(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let metadata = fs::metadata(file).with_context(|| format!("{shown} cannot be read"))?;
    ensure!(
        metadata.permissions().mode() & 0o077 == 0,
        "{shown} can be read by others; run chmod 600 on it"
    );
    let text = fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
    let key = text.trim();
    // What stands in the file must not get into a log, so the error does not quote it.
    ensure!(
        KEY_CHARACTERS_MIN <= key.len() && key.bytes().all(|sign| sign.is_ascii_graphic()),
        "{shown} holds no key: write one line of at least {KEY_CHARACTERS_MIN} letters and digits"
    );
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{ExplainConfig, policy};

    #[test]
    fn a_key_comes_from_a_private_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config =
            ExplainConfig { admin_key_file: file.path().to_owned(), ..ExplainConfig::default() };
        let cases = [
            ("0123456789abcdef\n", 0o600, ""),
            ("0123456789abcdef", 0o640, "chmod"),
            ("short", 0o600, "16"),
            ("0123456789 abcdef", 0o600, "letters"),
        ];
        for (text, mode, word) in cases {
            fs::write(file.path(), text).unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            match policy(&config) {
                Ok(_) => assert_eq!(word, "", "{text}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!word.is_empty() && error.contains(word), "{text}: {error}");
                    assert!(!error.contains(text), "{error}");
                }
            }
        }
        assert!(policy(&ExplainConfig::default()).is_ok());
    }
}
