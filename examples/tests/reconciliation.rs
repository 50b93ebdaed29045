//! Runs the example `reconciliation` as a user would, and looks at what it prints and at what it leaves behind.
//!
//! On SQLite, which needs nothing. On PostgreSQL it is run by the package `fence-tests`, which has servers.

use std::path::Path;
#[cfg(unix)]
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

#[path = "support/reconciliation.rs"]
mod support;

#[cfg(unix)]
use support::assert_shown;
use support::{assert_known_differences, example, number, result, run};

const HEADER: &str = "reference,booked_on,amount_cents\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are plain")
}

#[cfg(unix)]
#[test]
fn sqlite_without_any_argument() {
    assert_shown(&result(&run(&[])), "sqlite");
}

#[cfg(unix)]
#[tokio::test]
async fn sqlite_twice_on_one_file_which_keeps_its_rows() {
    let folder = folder();
    let file = folder.path().join("kept.sqlite3");
    let url = format!("sqlite://{}", text(&file));
    let first = result(&run(&["--database-url", &url]));
    let second = result(&run(&["--database-url", &url]));
    assert_shown(&first, "sqlite");
    assert_shown(&second, "sqlite");
    assert!(number(&second, "first_token") > number(&first, "second_token"), "{first}\n{second}");
    assert!(number(&second, "run_id") > number(&first, "run_id"), "{first}\n{second}");

    let pool = sqlx::SqlitePool::connect(&url).await.expect("the file is there");
    let (token,): (i64,) =
        sqlx::query_as("SELECT fence_token FROM fenced_job_leases WHERE lease_name = 'admin:reconciliation'")
            .fetch_one(&pool)
            .await
            .expect("the lease is kept");
    assert_eq!(token, number(&second, "final_token"));
    let runs: Vec<(i64, i64, String, i64)> = sqlx::query_as(
        "SELECT run_id, fence_token, status,
                (SELECT count(*) FROM reconciliation_differences d WHERE d.run_id = r.run_id)
         FROM reconciliation_runs r ORDER BY run_id",
    )
    .fetch_all(&pool)
    .await
    .expect("the runs are kept");
    let expected = [&first, &second].map(|result| {
        let differences = number(result, "differences");
        (number(result, "run_id"), number(result, "final_token"), "succeeded".to_owned(), differences)
    });
    assert_eq!(runs, expected);
}

#[test]
fn once_finds_the_known_differences() {
    let result = result(&run(&["--once"]));
    assert_known_differences(&result);
    assert_eq!(result["final_status"], "succeeded", "{result}");
    assert_eq!(number(&result, "final_token"), 1, "{result}");
}

#[test]
fn own_files_with_quotes_blank_lines_and_extremes() {
    let folder = folder();
    let (ours, bank) = (folder.path().join("ours.csv"), folder.path().join("bank.csv"));
    let (least, most) = (i64::MIN, i64::MAX);
    let books = [
        &format!("\"a, quoted\",2024-02-29,{most}\n"),
        "\n",
        &format!("ONLY-OURS,2026-01-01,{least}\n"),
        "\"say \"\"hi\"\"\",2026-01-01,1\n",
        "Ü,2026-01-01,5\n\n",
    ];
    std::fs::write(&ours, format!("{HEADER}{}", books.concat())).expect("written");
    let statement = [
        &format!("\"a, quoted\",2026-02-01,{most}\n"),
        "\"say \"\"hi\"\"\",2026-01-01,-1\n",
        "Ü,2026-01-01,5\n",
        &format!("ONLY-BANK,2026-01-01,{most}\n"),
    ];
    // A byte order mark and the line ends of another system.
    let statement = format!("\u{feff}{HEADER}{}", statement.concat()).replace('\n', "\r\n");
    std::fs::write(&bank, statement).expect("written");
    let result = result(&run(&["--once", "--ours", text(&ours), "--bank", text(&bank)]));
    let kinds = serde_json::json!({"missing_at_bank": 1, "missing_in_books": 1, "other_amount": 1});
    assert_eq!(result["differences_by_kind"], kinds, "{result}");
}

#[test]
fn files_that_agree_and_empty_ledgers() {
    let folder = folder();
    let file = folder.path().join("same.csv");
    for content in [HEADER.to_owned(), format!("{HEADER}A,2026-01-01,1\nB,2026-01-02,2")] {
        std::fs::write(&file, content).expect("written");
        let result = result(&run(&["--once", "--ours", text(&file), "--bank", text(&file)]));
        assert_eq!(number(&result, "differences"), 0, "{result}");
        assert_eq!(result["final_status"], "succeeded", "{result}");
    }
}

#[test]
fn a_bad_line_is_named_with_file_line_and_reason() {
    let cases: [(&[u8], &str); 16] = [
        (b"", "bad.csv: is empty"),
        (b"\n\n", "bad.csv: is empty"),
        (b"reference;booked_on;amount_cents\n", "line 1: the header is \"reference;booked_on;amount_cents\", expected"),
        (b"booked_on,reference,amount_cents\n", "line 1: the header is"),
        (b"A,2026-01-01,1\n", "line 1: the header is"),
        (b"H\nA,2026-01-01,1\nB,2026-01-01,12.50\n", "line 3: amount_cents \"12.50\" is no whole number"),
        (b"H\nA,2026-01-01,\n", "line 2: amount_cents \"\" is no whole number"),
        (b"H\nA,2026-01-01,9223372036854775808\n", "line 2: amount_cents \"9223372036854775808\" does not fit"),
        (b"H\nA,2025-02-29,1\n", "line 2: booked_on \"2025-02-29\" is no date"),
        (b"H\nA,2026-1-1,1\n", "line 2: booked_on \"2026-1-1\" is no date"),
        (b"H\nA,2026-01-01,1\n\n\nA,2026-01-02,2\n", "line 5: the reference \"A\" stands already in line 2"),
        (b"H\nA,2026-01-01\n", "line 2: has 2 field(s), expected 3"),
        (b"H\nA,2026-01-01,1,x\n", "line 2: has 4 field(s), expected 3"),
        (b"H\n,2026-01-01,1\n", "line 2: the reference is empty"),
        (b"H\nA,2026-01-01,1\n\"B,2026-01-01,1\nC,2026-01-01,1\n", "line 3: has 1 field(s), expected 3 (reference"),
        (b"H\nA\xff,2026-01-01,1\n", "line 2: is not UTF-8"),
    ];
    let folder = folder();
    let (file, database) = (folder.path().join("bad.csv"), folder.path().join("none.sqlite3"));
    for (content, expected) in cases {
        let content = match content.strip_prefix(b"H\n") {
            Some(rest) => [HEADER.as_bytes(), rest].concat(),
            None => content.to_vec(),
        };
        std::fs::write(&file, content).expect("written");
        for side in ["--ours", "--bank"] {
            let url = format!("sqlite://{}", text(&database));
            refused(&[side, text(&file), "--database-url", &url], &["bad.csv", expected]);
            assert!(!database.exists(), "a database was made for a bad file");
        }
    }
}

/// Exit code 2, nothing on stdout, and an error that has all these parts.
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {out}{err}");
    assert_eq!(out, "", "{arguments:?}");
    for part in parts {
        assert!(err.contains(part), "{arguments:?}: {part:?} is not in {err:?}");
    }
    assert!(!err.contains("panicked") && !err.contains("secret"), "{err}");
}

#[test]
fn wrong_input_is_refused_before_anything_starts() {
    let folder = folder();
    let missing = folder.path().join("missing.csv");
    refused(&["--ours", text(&missing)], &["missing.csv", "cannot be read"]);
    refused(&["--bank", text(folder.path())], &["cannot be read"]);
    refused(&["--database-url", "mssql://root:secret@localhost/x"], &["unknown scheme \"mssql\"", "sqlite://FILE"]);
    refused(&["--database-url", "ledger.sqlite3"], &["has no scheme", "sqlite://FILE"]);
    refused(&["--database-url", "sqlite::memory:"], &["needs a SQLite file"]);
    refused(&["--database-url", "sqlite://"], &["needs a SQLite file"]);
    refused(&["--database-url", "postgres://user:secret@127.0.0.1:1/db"], &["127.0.0.1:1/db", "cannot be used"]);
    refused(&["--database-url", "mysql://user:secret@127.0.0.1:1/db"], &["127.0.0.1:1/db", "cannot be used"]);
    let nowhere = format!("sqlite://{}/no/such/folder/file.sqlite3", text(folder.path()));
    refused(&["--database-url", &nowhere], &["no/such/folder", "cannot be used"]);
    let garbage = folder.path().join("garbage.sqlite3");
    std::fs::write(&garbage, "this is no database, but long enough to look like one".repeat(40)).expect("written");
    refused(&["--database-url", &format!("sqlite://{}", text(&garbage))], &["garbage.sqlite3", "cannot be used"]);
    refused(&["--no-such-option"], &["--no-such-option"]);
}

#[test]
fn help_says_what_there_is() {
    let output = run(&["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for word in ["--ours", "--bank", "--database-url", "--once", "reference,booked_on,amount_cents"] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
}

/// Reads the timeline until A stands still, and returns the numbers of the processes.
#[cfg(unix)]
fn until_stopped(demo: &mut Child, file: &Path) -> Vec<i32> {
    let mut lines = BufReader::new(demo.stdout.take().expect("piped")).lines();
    let mut workers = Vec::new();
    for line in &mut lines {
        let line = line.expect("the timeline is text");
        if let Some((_, rest)) = line.split_once("as process ") {
            workers.push(rest.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a number"));
        }
        if line.contains("SIGSTOP") {
            assert!(file.exists(), "the database is there while the demo runs");
            // Goes on reading, so that nothing ends because nobody listens.
            std::thread::spawn(move || lines.for_each(drop));
            return workers;
        }
    }
    panic!("the demo ended before it stopped A");
}

/// A process that is only waiting for somebody to take note of its end is not alive.
#[cfg(unix)]
fn is_alive(process: rustix::process::Pid) -> bool {
    let zombie = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid()))
        .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z')));
    !zombie && rustix::process::test_kill_process(process).is_ok()
}

/// However the demo ends, no worker is left, not even the one that stands still.
#[cfg(unix)]
#[test]
fn no_worker_outlives_the_demo() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let folder = folder();
        let file = folder.path().join("left.sqlite3");
        let mut demo = example()
            .args(["--database-url", &format!("sqlite://{}", text(&file))])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let workers = until_stopped(&mut demo, &file);
        assert_eq!(workers.len(), 1, "A alone has started");
        kill_process(Pid::from_child(&demo), signal).expect("the demo is there");
        assert_eq!(demo.wait().expect("it ends").code(), code);
        for worker in workers {
            let worker = Pid::from_raw(worker).expect("a process");
            let asked = std::time::Instant::now();
            while is_alive(worker) {
                assert!(asked.elapsed().as_secs() < 10, "{worker:?} outlives the demo after {signal:?}");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// A worker that dies is noticed, and the other does not stay.
#[cfg(unix)]
#[test]
fn a_dead_worker_ends_the_demo() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = folder();
    let file = folder.path().join("dead.sqlite3");
    let mut demo = example()
        .args(["--database-url", &format!("sqlite://{}", text(&file))])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let workers = until_stopped(&mut demo, &file);
    kill_process(Pid::from_raw(workers[0]).expect("a process"), Signal::KILL).expect("A is there");
    let output = demo.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("worker A"), "{output:?}");
}
