use std::process::Command;

use super::*;

#[test]
#[ignore = "the tests below run it, in a process with an environment of its own"]
fn misses_something() {
    let missing: Result<(), Missing> = Err(Missing::new("luck", "find some"));
    require!(missing);
    panic!("it went on");
}

#[test]
#[ignore = "the tests below run it, in a process with an environment of its own"]
fn misses_what_no_machine_has() {
    let missing: Result<(), Missing> = Err(Missing::by_nature("a second moon", "none has it"));
    require!(missing);
    panic!("it went on");
}

/// Runs one of the above; true if it passed, and what it recorded.
fn run(test: &str, ci: &str) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().expect("file");
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", &format!("tests::{test}")]);
    let ended = command.env("CI", ci).env("KEELSON_LEFT_OUT", file.path()).output().expect("run");
    (ended.status.success(), std::fs::read_to_string(file.path()).expect("read"))
}

#[test]
fn what_is_missing_skips_the_test_and_fails_it_in_ci() {
    let recorded = "missing luck: find some\tkeelson_require: tests::misses_something\n";
    assert_eq!(run("misses_something", ""), (true, recorded.into()));
    assert_eq!(run("misses_something", "true"), (false, String::new()));
}

#[test]
fn what_no_machine_has_skips_the_test_in_ci_too() {
    for ci in ["", "true"] {
        let (passed, recorded) = run("misses_what_no_machine_has", ci);
        assert!(passed && recorded.starts_with("this machine lacks a second moon: "), "{recorded}");
    }
}

#[test]
fn what_is_not_there_is_named_with_its_remedy() {
    let missing = program("no-such-program-anywhere").expect_err("not there").to_string();
    assert!(missing.contains("no-such-program-anywhere") && missing.contains("deps.sh"), "{missing}");
    let missing = part("no-such-part").expect_err("unknown").to_string();
    assert!(missing.contains("tests/parts.sh no-such-part"), "{missing}");
    assert!(program("sh").is_ok());
}
