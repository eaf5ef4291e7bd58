//! The script that writes the catalogue of models.
#![cfg(test)]
#![cfg(feature = "server")]

use std::path::Path;
use std::process::Command;

/// Its facts are checked where they are read, in src/tokens/catalogue.rs.
#[test]
fn the_script_writes_the_catalogue_of_a_package() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(root.join(".ci/model-catalogue.py"))
        .arg(root.join("tests/data/models/entries.json"))
        .arg("0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = String::from_utf8(output.stdout).unwrap();
    assert_eq!(written, include_str!("data/models/catalogue.json"));
}
