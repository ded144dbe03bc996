//! Runs a credential provider's program: what it is asked on its stdin, what it answers on its stdout. All of it has bounds, and
//! when it is over, nothing that the program started in its process group is left.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// An answer has a few credentials in it.
const MOST_ANSWERED: usize = 1 << 20;
/// Of what it says on stderr, for whoever reads why it failed.
const MOST_SAID: usize = 1 << 10;

pub(super) struct Program {
    pub path: PathBuf,
    pub args: Vec<String>,
    /// Beside the agent's own.
    pub env: Vec<(String, String)>,
    pub limit: Duration,
}

/// The process group of a program that runs. Gone with everything in it when this is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody is left in it as a rule.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Program {
    /// May be dropped at any point; the program is then killed. The error has none of its answer in it, which is secret.
    pub async fn ask(&self, question: &str) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{} cannot be run: {e}", self.path.display()))?;
        let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
        let limit = self.limit;
        match tokio::time::timeout(limit, converse(&mut child, group, question)).await {
            Ok(done) => done,
            Err(_) => Err(format!("did not answer within {limit:?}, and was killed")),
        }
    }
}

async fn converse(child: &mut Child, group: Group, question: &str) -> Result<Vec<u8>, String> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let asking = async {
        if let Some(mut stdin) = stdin {
            // A program that needs no question may close its stdin.
            let _ = stdin.write_all(question.as_bytes()).await;
        }
        Ok(())
    };
    let ending = async {
        let status = child.wait().await.map_err(|e| format!("cannot be waited for: {e}"));
        // What it left behind might hold the pipes open for good.
        drop(group);
        status
    };
    let (_, answer, said, status) =
        tokio::try_join!(asking, read_answer(stdout), async { Ok(read_words(stderr).await) }, ending)?;
    match status.success() {
        true => Ok(answer),
        false => Err(failed(status, &said)),
    }
}

fn failed(status: ExitStatus, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.is_empty() {
        true => format!("failed with {status}"),
        false => format!("failed with {status}: {words}"),
    }
}

async fn read_answer(from: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, String> {
    let mut answer = vec![];
    if let Some(from) = from {
        let most = MOST_ANSWERED as u64 + 1;
        from.take(most)
            .read_to_end(&mut answer)
            .await
            .map_err(|e| format!("its answer cannot be read: {e}"))?;
    }
    match answer.len() > MOST_ANSWERED {
        true => Err(format!("answered with more than {MOST_ANSWERED} bytes, and was killed")),
        false => Ok(answer),
    }
}

/// The beginning of what it says. The rest is read and dropped, so that it can go on.
async fn read_words(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut words = vec![];
    let Some(mut from) = from else { return words };
    let mut piece = [0; 4096];
    while let Ok(bytes @ 1..) = from.read(&mut piece).await {
        let room = MOST_SAID - words.len();
        words.extend_from_slice(&piece[..bytes.min(room)]);
    }
    words
}

#[cfg(test)]
#[path = "plugin_tests.rs"]
mod tests;
