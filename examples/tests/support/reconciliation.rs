//! How tests run the example `reconciliation` and read its last line. Also used by the package `fence-tests`.
#![allow(dead_code, reason = "no test uses everything")]
#![allow(missing_docs, unreachable_pub, reason = "a module of tests")]

use std::{
    path::Path,
    process::{Command, Output},
    sync::Once,
};

use serde_json::Value;

/// What `data/generate.py` puts into the committed files.
const KNOWN: [(&str, i64); 3] = [("missing_at_bank", 23), ("missing_in_books", 17), ("other_amount", 32)];

/// The example, built. `cargo test` does that for the packages that it was asked to test, so build it for the others.
pub fn example() -> Command {
    static BUILT: Once = Once::new();
    // Cargo tells its tests no path of an example; it puts them beside the folder where the tests are.
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let example = folder.join("examples").join(format!("reconciliation{}", std::env::consts::EXE_SUFFIX));
    BUILT.call_once(|| {
        if !example.exists() {
            let profile = match folder.file_name().and_then(|name| name.to_str()) {
                Some("debug") | None => "dev",
                Some(profile) => profile,
            };
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            build.args(["build", "--package=fence-examples", "--example=reconciliation", "--profile", profile]);
            assert!(build.status().is_ok_and(|status| status.success()), "the example cannot be built");
        }
    });
    Command::new(example)
}

pub fn run(arguments: &[&str]) -> Output {
    example().args(arguments).output().expect("the example starts")
}

/// The JSON object of the last line, of a run that ended well.
pub fn result(output: &Output) -> Value {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(!out.contains('\x1b'), "colours without a terminal: {out}");
    let last = out.lines().last().expect("the example prints something");
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}\n{out}"))
}

pub fn number(result: &Value, key: &str) -> i64 {
    result[key].as_i64().unwrap_or_else(|| panic!("{key} is no number in {result}"))
}

/// Everything that the show promises, for the committed files.
pub fn assert_shown(result: &Value, database: &str) {
    assert_eq!(result["lease"], "admin:reconciliation", "{result}");
    assert_eq!(result["database"], database, "{result}");
    assert_ne!(number(result, "first_pid"), number(result, "second_pid"), "{result}");
    assert_eq!(number(result, "second_token"), number(result, "first_token") + 1, "{result}");
    assert_eq!(result["stale_completion"], "refused", "{result}");
    assert_eq!(result["refused_by"], "database", "{result}");
    assert_eq!(result["changed_by_stale_worker"], false, "{result}");
    assert_eq!(result["final_status"], "succeeded", "{result}");
    assert_eq!(result["final_token"], result["second_token"], "{result}");
    assert!(number(result, "stopped_ms") > 2000, "stopped for less than the lease lives: {result}");
    assert_known_differences(result);
    assert_eq!(result["deleted_leftovers"], result["differences"], "{result}");
}

pub fn assert_known_differences(result: &Value) {
    for (kind, count) in KNOWN {
        assert_eq!(result["differences_by_kind"][kind], count, "{result}");
    }
    assert_eq!(number(result, "differences"), KNOWN.iter().map(|(_, count)| count).sum::<i64>(), "{result}");
}
