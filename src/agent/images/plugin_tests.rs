use std::fs;

use super::*;

/// A program that is this line of the shell. `marker` is in its environment, by which what it started can be found.
fn shell(line: &str, marker: &str, limit: Duration) -> Program {
    Program {
        path: "/bin/sh".into(),
        args: vec!["-c".into(), line.into()],
        env: vec![("MARKER".into(), marker.into())],
        limit,
    }
}

const LONG: Duration = Duration::from_secs(60);

fn processes_with(marker: &str) -> usize {
    let wanted = format!("MARKER={marker}");
    let environs = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("environ"));
    let texts = environs.filter_map(|path| fs::read(path).ok());
    texts.filter(|text| text.split(|b| *b == 0).any(|v| v == wanted.as_bytes())).count()
}

/// A process that was killed is there until its parent has noticed.
async fn none_left(marker: &str) {
    while processes_with(marker) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_program_is_asked_and_answers() {
    let program = shell(r#"read question; echo "$MARKER: $question""#, "answers", LONG);
    assert_eq!(program.ask("who\n").await.unwrap(), b"answers: who\n");
    let deaf = shell("exec <&-; echo same", "deaf", LONG);
    assert_eq!(deaf.ask(&"long ".repeat(100_000)).await.unwrap(), b"same\n");
    let noisy = shell("yes | head -c 3000000 >&2; echo yes", "noisy", LONG);
    assert_eq!(noisy.ask("").await.unwrap(), b"yes\n");
}

#[tokio::test]
async fn what_goes_wrong_is_named_and_nothing_is_left_running() {
    let short = Duration::from_millis(300);
    for (marker, line, limit, expected) in [
        ("fails", "echo hidden; echo no login >&2; exit 3", LONG, "exit status: 3: no login"),
        ("killed", "kill -9 $$", LONG, "signal: 9"),
        ("hangs", "sleep 3600 & sleep 3600", short, "did not answer within 300ms"),
        ("floods", "sleep 3600 & cat /dev/zero", LONG, "more than 1048576 bytes"),
    ] {
        let error = shell(line, marker, limit).ask("").await.unwrap_err();
        assert!(error.contains(expected) && !error.contains("hidden"), "{marker}: {error}");
        none_left(marker).await;
    }
    let absent = Program { path: "/nowhere/plugin".into(), ..shell("", "", LONG) };
    let error = absent.ask("").await.unwrap_err();
    assert!(error.starts_with("/nowhere/plugin cannot be run"), "{error}");
}

#[tokio::test]
async fn a_child_that_keeps_the_pipes_open_is_not_waited_for() {
    let program = shell("sleep 3600 & echo answer", "leaves", LONG);
    assert_eq!(program.ask("").await.unwrap(), b"answer\n");
    none_left("leaves").await;
}

#[tokio::test]
async fn who_no_longer_waits_leaves_nothing_behind() {
    let program = shell("sleep 3600 & sleep 3600", "dropped", LONG);
    {
        let mut asking = std::pin::pin!(program.ask(""));
        while processes_with("dropped") < 2 {
            tokio::select! {
                biased;
                done = &mut asking => panic!("{done:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    none_left("dropped").await;
}
