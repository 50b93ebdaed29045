//! What must not compile, and what the compiler says then; what must.
//!
//! Every file of `ui/fail` is a crate that must not compile. What it is told then is in its `.stderr`, compared word
//! for word on the compiler that wrote it ([`RECORDED`]; `TRYBUILD=overwrite cargo test -p fence-tests --test ui`
//! writes them anew). On any other compiler the cases must not compile either, and where the wording is ours
//! ([`OUR_WORDS`]) each of our messages must still be there; the rest is the compiler's own and may change.
//!
//! Every file of `ui/pass` is a module of this one.

#![allow(dead_code, reason = "the modules of `ui/pass` are there to compile")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

#[path = "../ui/pass/reexported.rs"]
mod reexported;
#[path = "../ui/pass/signatures.rs"]
mod signatures;
#[path = "../ui/pass/strict.rs"]
mod strict;

/// The compiler whose words the `.stderr` files hold.
const RECORDED: &str = "rustc 1.95.";

/// The folders of `ui/fail` whose wording is ours. In the others the types of the runtime do the work (lifetimes,
/// privacy, types), and the words are the compiler's.
const OUR_WORDS: &[&str] = &["executor", "handles", "options", "outcome", "signature"];

/// Set for the copy of this test that looks at cases without a `.stderr`; also forces that on the recorded compiler.
const UNRECORDED: &str = "FENCE_UI_UNRECORDED";

#[test]
fn misuse_does_not_compile() {
    if let Some(copies) = env::var_os(UNRECORDED).filter(|copies| Path::new(copies).is_dir()) {
        return check(Path::new(&copies));
    }
    if compiler().starts_with(RECORDED) && env::var_os(UNRECORDED).is_none() {
        check(&cases());
    } else {
        check_unrecorded();
    }
}

#[test]
fn every_case_is_recorded() {
    let missing: Vec<PathBuf> =
        sources(&cases()).into_iter().filter(|case| !case.with_extension("stderr").is_file()).collect();
    assert!(missing.is_empty(), "no `.stderr` for {missing:#?}");
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/fail")
}

fn check(cases: &Path) {
    trybuild::TestCases::new().compile_fail(cases.join("*/*.rs"));
}

/// trybuild has no "must not compile, whatever it says". But told to overwrite, it fails a case only if it compiles,
/// and leaves behind what was said: so it is given copies of the cases, in a process of its own, since it is told by
/// the environment.
fn check_unrecorded() {
    let copies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui-unrecorded");
    let _ = fs::remove_dir_all(&copies);
    for case in sources(&cases()) {
        let copy = copies.join(case.strip_prefix(cases()).expect("a case"));
        fs::create_dir_all(copy.parent().expect("a class")).expect("target directory");
        fs::copy(&case, &copy).expect("target directory");
    }
    let status = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "misuse_does_not_compile", "--nocapture"])
        .env(UNRECORDED, &copies)
        .env("TRYBUILD", "overwrite")
        .status()
        .expect("this test runs");
    assert!(status.success(), "something compiled that must not");

    for case in sources(&cases()).into_iter().filter(|case| has_our_words(case)) {
        let copy = copies.join(case.strip_prefix(cases()).expect("a case")).with_extension("stderr");
        let said = fs::read_to_string(&copy).unwrap_or_else(|error| panic!("{}: {error}", copy.display()));
        for message in messages(&fs::read_to_string(case.with_extension("stderr")).expect("recorded")) {
            assert!(said.contains(message), "{}: not told any more: {message}\n{said}", case.display());
        }
    }
}

fn has_our_words(case: &Path) -> bool {
    let class = case.parent().and_then(Path::file_name).expect("a class");
    OUR_WORDS.iter().any(|ours| class == *ours)
}

/// Our messages: those of the macros, which have no code, and those of `on_unimplemented`.
fn messages(stderr: &str) -> impl Iterator<Item = &str> {
    stderr.lines().filter_map(|line| line.strip_prefix("error: ").or_else(|| line.strip_prefix("error[E0277]: ")))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for class in fs::read_dir(dir).expect("cases").map(|class| class.expect("cases").path()) {
        let files = fs::read_dir(&class).expect("a class").map(|file| file.expect("a case").path());
        found.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")));
    }
    found.sort();
    found
}

fn compiler() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("rustc runs");
    String::from_utf8_lossy(&version.stdout).into_owned()
}
