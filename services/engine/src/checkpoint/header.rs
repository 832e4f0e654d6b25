//! The header of one safetensors file: which tensor lies where.
//!
//! Format: eight bytes little-endian length, that many bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the
//! data. Read by hand, because each defect must be named, repeated names must not vanish in a map, and the E8M0 type
//! is needed. The data must be covered exactly: no overlap, no hole, nothing after the end.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Deserializer, Value};

use super::CheckpointError;

/// Bound of a header in bytes, the one the format's own library has.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bound of the tensors of one file; the whole release has 96,085.
const TENSORS_MAX: usize = 1 << 20;
/// Bound of the dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

/// How the elements of a stored tensor are encoded. Names and sizes of the safetensors format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned byte.
    U8,
    /// Signed byte; a pair of E2M1 codes in FP4 weights.
    I8,
    /// 8-bit float with 5 exponent bits.
    F8E5m2,
    /// 8-bit float with 4 exponent bits.
    F8E4m3,
    /// 8-bit power of two.
    F8E8m0,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single precision.
    F32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE double precision.
    F64,
}

impl Dtype {
    const ALL: [(&'static str, Self, u64); 16] = [
        ("BOOL", Self::Bool, 1),
        ("U8", Self::U8, 1),
        ("I8", Self::I8, 1),
        ("F8_E5M2", Self::F8E5m2, 1),
        ("F8_E4M3", Self::F8E4m3, 1),
        ("F8_E8M0", Self::F8E8m0, 1),
        ("I16", Self::I16, 2),
        ("U16", Self::U16, 2),
        ("F16", Self::F16, 2),
        ("BF16", Self::Bf16, 2),
        ("I32", Self::I32, 4),
        ("U32", Self::U32, 4),
        ("F32", Self::F32, 4),
        ("I64", Self::I64, 8),
        ("U64", Self::U64, 8),
        ("F64", Self::F64, 8),
    ];

    /// The name the format uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.row().2
    }

    fn row(self) -> (&'static str, Self, u64) {
        *Self::ALL.iter().find(|row| row.1 == self).expect("every type has a row")
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.0 == name).map(|row| row.1)
    }
}

/// One tensor as a header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub(crate) begin: u64,
    pub(crate) bytes: u64,
}

/// Reads the header of a file and checks it against the file's length. Entries come in the order of their data.
pub(crate) fn read_header(path: &Path) -> Result<Vec<TensorEntry>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_path_buf(), source };
    let damaged = |reason: String| CheckpointError::Damaged { file: path.to_path_buf(), reason };
    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    if file_bytes < 8 {
        return Err(damaged(format!("it has {file_bytes} bytes, expected at least 8")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed)?;
    let header_bytes = u64::from_le_bytes(length);
    if HEADER_BYTES_MAX.min(file_bytes - 8) < header_bytes {
        return Err(damaged(format!(
            "its header claims {header_bytes} bytes of a file of {file_bytes}"
        )));
    }
    let mut header = vec![0; usize::try_from(header_bytes).expect("bounded above")];
    file.read_exact(&mut header).map_err(failed)?;
    parse(&header, file_bytes).map_err(damaged)
}

/// Checks the JSON part of a header for a file of `file_bytes` bytes.
fn parse(header: &[u8], file_bytes: u64) -> Result<Vec<TensorEntry>, String> {
    let data_begin = 8 + header.len() as u64;
    let mut json = Deserializer::from_slice(header);
    let described = json
        .deserialize_map(HeaderVisitor)
        .and_then(|described| json.end().map(|()| described))
        .map_err(|error| format!("its header is not valid: {error}"))?;
    let mut entries = described
        .into_iter()
        .map(|(name, value)| entry(name, &value, data_begin))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_by(|a, b| (a.begin, a.bytes, &a.name).cmp(&(b.begin, b.bytes, &b.name)));
    let mut end = data_begin;
    for entry in &entries {
        if entry.begin != end {
            return Err(format!(
                "tensor {} begins at byte {}, expected {end}: tensors overlap or leave a hole",
                entry.name, entry.begin
            ));
        }
        end += entry.bytes;
    }
    if end != file_bytes {
        return Err(format!("it has {file_bytes} bytes, expected {end} from its header"));
    }
    Ok(entries)
}

fn entry(name: String, value: &Value, data_begin: u64) -> Result<TensorEntry, String> {
    let wrong = |what: &str| format!("tensor {name} has no valid {what}");
    let dtype_name = value["dtype"].as_str().ok_or_else(|| wrong("dtype"))?;
    let dtype = Dtype::parse(dtype_name)
        .ok_or_else(|| format!("tensor {name} has the unknown dtype {dtype_name}"))?;
    let shape = integers(&value["shape"], DIMENSIONS_MAX).ok_or_else(|| wrong("shape"))?;
    let offsets = integers(&value["data_offsets"], 2).ok_or_else(|| wrong("data_offsets"))?;
    let [begin, end] = offsets[..] else { return Err(wrong("data_offsets")) };
    let expected = shape.iter().try_fold(dtype.bytes(), |bytes, size| bytes.checked_mul(*size));
    if end.checked_sub(begin).is_none() || end.checked_sub(begin) != expected {
        return Err(format!(
            "tensor {name} is {dtype_name} {shape:?} but its data_offsets are [{begin}, {end}]"
        ));
    }
    let begin = begin.checked_add(data_begin).ok_or_else(|| wrong("data_offsets"))?;
    let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>();
    let shape = shape.map_err(|_| wrong("shape"))?;
    Ok(TensorEntry { dtype, shape, begin, bytes: end - (begin - data_begin), name })
}

fn integers(value: &Value, length_max: usize) -> Option<Vec<u64>> {
    let values = value.as_array().filter(|values| values.len() <= length_max)?;
    values.iter().map(|value| value.as_u64().filter(|v| *v <= i64::MAX.unsigned_abs())).collect()
}

/// Collects the entries of a header, refusing a name that comes twice.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor {name} is there twice")));
            }
            if TENSORS_MAX <= entries.len() {
                return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    /// Parses a header whose data area has `data` bytes.
    fn check(header: &str, data: u64) -> Result<usize, String> {
        parse(header.as_bytes(), 8 + header.len() as u64 + data).map(|entries| entries.len())
    }

    #[test]
    fn a_sound_header_is_read() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F8_E8M0","shape":[2,3],"data_offsets":[4,10]},
            "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
            "scalar":{"dtype":"F32","shape":[],"data_offsets":[10,14]}}"#;
        assert_eq!(check(header, 14), Ok(3));
        assert_eq!(check("{} ", 0), Ok(0));
    }

    #[test]
    fn each_defect_is_named() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let two = |second: &str, offsets: &str| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                "{second}":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#
            )
        };
        let cases = [
            ("{".to_owned(), 0, "not valid"),
            ("[]".to_owned(), 0, "expected an object of tensors"),
            (r#"{"a":1}"#.to_owned(), 0, "no valid dtype"),
            (one("F4", "[2]", "[0,1]"), 1, "unknown dtype F4"),
            (one("U8", "[-2]", "[0,1]"), 1, "no valid shape"),
            (one("U8", "[2]", "[0]"), 2, "no valid data_offsets"),
            (one("U8", "[2]", "[2,0]"), 2, "data_offsets are [2, 0]"),
            (one("F32", "[2]", "[0,4]"), 4, "F32 [2] but its data_offsets are [0, 4]"),
            (one("U8", "[9223372036854775807,4]", "[0,4]"), 4, "data_offsets are [0, 4]"),
            (two("a", "[4,8]"), 8, "tensor a is there twice"),
            (two("b", "[2,6]"), 6, "overlap"),
            (two("b", "[5,9]"), 9, "hole"),
            (two("b", "[4,8]"), 7, "bytes, expected"),
            (two("b", "[4,8]"), 9, "bytes, expected"),
        ];
        for (header, data, expected) in cases {
            let error = check(&header, data).unwrap_err();
            assert!(error.contains(expected), "{header}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }
}
