use shared::TokenId;

use super::{EngramHasher, EngramToken, HashTables};
use crate::config::ModelConfig;
use crate::golden::{GoldenSet, golden_folders};

const FLASH: &str = include_str!("../config/flash.json");

#[test]
fn flash_tables_have_the_published_constants() {
    let engram = ModelConfig::parse(FLASH).unwrap().engram.unwrap();
    let tables = HashTables::build(&engram);
    assert_eq!(
        tables[0].multipliers(),
        [76_632_096_046_245, 4_839_876_093_313, 35_959_672_319_349, 73_987_337_458_391]
    );
    assert_eq!(
        tables[1].multipliers(),
        [67_716_810_739_261, 51_510_806_800_915, 30_921_347_202_721, 82_619_226_485_591]
    );
    let last_three: [[u64; 24]; 2] = [
        [
            57, 79, 81, 97, 121, 129, 133, 183, 189, 207, 211, 253, 277, 289, 307, 321, 339, 381,
            393, 399, 403, 409, 447, 463,
        ],
        [
            477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697, 711, 729, 759, 769, 781,
            799, 813, 819, 841, 877, 879, 889,
        ],
    ];
    for (table, expected) in tables.iter().zip(last_three) {
        assert_eq!(table.primes(), expected.map(|end| 16_000_000 + end));
    }
    assert_eq!(tables.iter().map(HashTables::rows).collect::<Vec<_>>(), [384_006_168, 384_016_682]);
}

#[test]
fn flash_rows_equal_the_known_answers() {
    // specs/v41-architecture.md §16: compressed ids, newest first; (column, row).
    let engram = ModelConfig::parse(FLASH).unwrap().engram.unwrap();
    let tables = HashTables::build(&engram);
    let known: [[(usize, u64); 8]; 2] = [
        [
            (0, 2_490_620),
            (1, 30_742_399),
            (2, 43_508_771),
            (8, 141_932_547),
            (9, 152_141_891),
            (16, 267_026_494),
            (17, 286_063_247),
            (23, 382_620_483),
        ],
        [
            (0, 13_209_604),
            (1, 27_196_187),
            (2, 47_300_532),
            (8, 136_676_902),
            (9, 155_853_486),
            (16, 270_228_360),
            (17, 282_393_299),
            (23, 381_128_555),
        ],
    ];
    for (table, known) in tables.iter().zip(known) {
        let mut rows = [0; 24];
        table.rows_of(&[1_000, 2_000, 3_000, 99_091], &mut rows);
        assert_eq!(known.map(|(column, _)| (column, rows[column])), known);
    }
}

fn hasher(folder: &std::path::Path) -> EngramHasher {
    let config = ModelConfig::read(&folder.join("checkpoint/config.json")).unwrap();
    let tokenizer = std::fs::read(folder.join("checkpoint/tokenizer.json")).unwrap();
    EngramHasher::build(&config, &tokenizer).unwrap()
}

#[test]
fn golden_token_maps_and_tables_are_reproduced() {
    for folder in golden_folders() {
        let hasher = hasher(&folder);
        let set = GoldenSet::open(&folder).unwrap();
        let tables = set.section("engram_tables").unwrap();
        let integers = |value: &serde_json::Value| -> Vec<u64> {
            value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
        };
        let map: Vec<u64> = hasher.map().ids().iter().map(|id| u64::from(*id)).collect();
        assert_eq!(map, integers(&tables["token_map"]), "{}", folder.display());
        for (slot, table) in hasher.tables().iter().enumerate() {
            assert_eq!(table.multipliers(), integers(&tables["multipliers"][slot]));
            assert_eq!(table.primes(), integers(&tables["primes"][slot]));
            assert_eq!(table.offsets(), integers(&tables["offsets"][slot]));
        }
    }
}

#[test]
fn golden_rows_are_reproduced_and_depend_on_the_last_tokens_alone() {
    let mut compared = 0;
    for folder in golden_folders() {
        let hasher = hasher(&folder);
        let config = ModelConfig::read(&folder.join("checkpoint/config.json")).unwrap();
        let set = GoldenSet::open(&folder).unwrap();
        for case in set.cases().iter().filter(|c| c.kind == "trace" || c.kind == "lists") {
            let tensors = case.read().unwrap();
            let history: Vec<_> =
                case.ids("ids").unwrap().into_iter().map(EngramToken::Text).collect();
            for (slot, layer) in config.engram.as_ref().unwrap().layers.iter().enumerate() {
                let expected = tensors.i64(&format!("L{layer}.engram_rows")).unwrap();
                let columns = hasher.columns();
                let mut rows = vec![0; columns];
                for (position, expected) in expected.chunks_exact(columns).enumerate() {
                    let expected: Vec<u64> =
                        expected.iter().map(|row| u64::try_from(*row).unwrap()).collect();
                    hasher.rows(slot, &history[..=position], &mut rows);
                    assert_eq!(rows, expected, "{} layer {layer} at {position}", case.name);
                    let first = (position + 1).saturating_sub(hasher.ngram_max());
                    hasher.rows(slot, &history[first..=position], &mut rows);
                    assert_eq!(rows, expected);
                    compared += 1;
                }
            }
        }
    }
    assert!(0 < compared);
}

#[test]
fn a_dead_position_hides_itself_and_everything_before_it() {
    let folder = golden_folders().remove(0);
    let hasher = hasher(&folder);
    let text = |id| EngramToken::Text(TokenId(id));
    let pad = text(2);
    let rows = |history: &[EngramToken]| {
        let mut rows = vec![0; hasher.columns()];
        hasher.rows(0, history, &mut rows);
        rows
    };
    let full = [text(100), EngramToken::Dead, text(101), text(102)];
    assert_eq!(rows(&full), rows(&[text(101), text(102)]));
    assert_eq!(rows(&full), rows(&[pad, pad, text(101), text(102)]));
    assert_eq!(rows(&[text(100), text(101), EngramToken::Dead]), rows(&[pad, pad, pad, pad]));
}
