//! The generated code is what the protocol files generate.

#[path = "../../../proto/generator.rs"]
mod generator;

use std::fs;
use std::path::Path;

#[test]
fn generated_code_is_fresh() {
    // Tests run in the folder of their crate; a path fixed at build time could point into another clone.
    let package = Path::new(".");
    for generated in generator::ALL {
        let scratch = tempfile::tempdir().unwrap();
        let expected = generated.generate(package, scratch.path());
        let target = generated.target;
        let found = fs::read_to_string(package.join(target)).unwrap();
        assert!(
            found == expected,
            "{target} is not what proto/ generates; run `cargo run --release -p kvasir --example generate_wire -- services/kvasir`"
        );
    }
}
