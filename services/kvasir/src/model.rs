//! What the front door is told about the model: names, tokenizer, context, and what keys block names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use engine::{Arithmetic, Checkpoint};
use gateway::ServedModel;
use shared::{Clock, TenantId};

use crate::clock::random_bytes;
use crate::config::ServerConfig;

/// The one tenant until there are API keys.
const TENANT: &str = "default";

/// Describes a checkpoint for serving. Blocks on files: the model's identity samples every tensor.
///
/// # Errors
/// When a file of the checkpoint or of the cluster secret cannot be used.
pub(crate) fn served(
    config: &ServerConfig,
    checkpoint: &Checkpoint,
    clock: &dyn Clock,
) -> anyhow::Result<ServedModel> {
    let folder = checkpoint.folder();
    let name = match &config.model_name {
        Some(name) => name.clone(),
        None => folder_name(folder)?,
    };
    let arithmetic: Arithmetic = config.arith.into();
    Ok(ServedModel {
        names: vec![name],
        tokenizer: folder.join("tokenizer.json"),
        context_tokens: checkpoint.config().context,
        created: clock.unix_seconds(),
        cluster_secret: secret(config.cluster_secret_file.as_deref())?,
        tenant: TenantId(Arc::from(TENANT)),
        model_id: checkpoint.model_id()?,
        layout: checkpoint.config().layout().fingerprint(),
        numerics: arithmetic.numerics(),
    })
}

fn folder_name(folder: &Path) -> anyhow::Result<String> {
    let shown = folder.display();
    let whole = fs::canonicalize(folder).with_context(|| format!("{shown} cannot be found"))?;
    let name = whole.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| {
        format!("the folder {shown} has no name that clients could use; set server.model_name")
    })?;
    Ok(name.to_owned())
}

/// The cluster's secret: random, or the 64 hexadecimal digits of a file that others cannot read.
fn secret(file: Option<&Path>) -> anyhow::Result<[u8; 32]> {
    let Some(file) = file else {
        return random_bytes().context("no random bytes for the cluster secret");
    };
    let shown = file.display();
    let metadata = fs::metadata(file).with_context(|| format!("{shown} cannot be read"))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        bail!("{shown} can be read by others; run chmod 600 on it");
    }
    let text = fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
    // What stands in the file must not get into a log, so the error does not quote it.
    parse_secret(text.trim()).with_context(|| {
        format!("{shown} does not hold 64 hexadecimal digits; make one with openssl rand -hex 32")
    })
}

fn parse_secret(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 64)?;
    let mut secret = [0; 32];
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(16 * pair[0] + pair[1]).expect("two hexadecimal digits");
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{folder_name, secret};

    #[test]
    fn a_secret_comes_from_a_private_file_of_hexadecimal_digits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let set = |text: &str, mode| {
            fs::write(file.path(), text).unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&format!("{}ff\n", "0a".repeat(31)), 0o600);
        let mut expected = [10; 32];
        expected[31] = 255;
        assert_eq!(secret(Some(file.path())).unwrap(), expected);
        let cases = [
            ("0a".repeat(32), 0o640, "chmod"),
            ("0a".to_owned(), 0o600, "64"),
            ("zz".repeat(32), 0o600, "64"),
        ];
        for (text, mode, expected) in cases {
            set(&text, mode);
            let error = secret(Some(file.path())).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains(&text), "{error}");
        }
    }

    #[test]
    fn without_a_file_every_process_has_its_own_secret() {
        assert_ne!(secret(None).unwrap(), secret(None).unwrap());
    }

    #[test]
    fn a_model_is_called_like_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("my-model");
        fs::create_dir(&model).unwrap();
        assert_eq!(folder_name(&model.join(".")).unwrap(), "my-model");
        assert!(folder_name(Path::new("/")).is_err());
    }
}
