//! Faults that real parts do not make when asked: the agent between an apiserver and a runtime that both misbehave.

mod handlers;
mod lifecycle;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_fakes::api::{FakeApi, Fault as ApiFault};
use keelson_fakes::cri::{FakeCri, Fault, Lie, Rpc};
use keelson_tests::agent::{Agent, Options};
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use serde_json::{Value, json};
use tonic::Code;

const LIMIT: Duration = Duration::from_secs(30);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let mut number = 0;
    let mut dir = |suite: &Suite| {
        number += 1;
        folder(suite.dir(), &format!("case-{number}"))
    };
    let case = "a watch that is too old, cut in half or silent loses no pod";
    suite.case(case, LIMIT * 4, bad_watches(&dir(suite)?)).await;
    let case = "429, 409, 500 and a lost answer on the way of a status lose no update";
    suite.case(case, LIMIT * 2, bad_patches(&dir(suite)?)).await;
    let case = "away at the start and for a while, the apiserver is caught up with";
    suite.case(case, LIMIT * 2, comes_and_goes(&dir(suite)?)).await;
    let case =
        "no pod is refused before the node object was read, and the runtime is told the ranges of pods";
    suite.case(case, LIMIT * 2, node_object(&dir(suite)?)).await;
    handlers::run(suite, &mut dir).await?;
    let case = "one pod whose sandbox cannot be made holds up no other";
    suite.case(case, LIMIT * 2, one_pod_hangs(&dir(suite)?)).await;
    let case = "a sandbox that was made without an answer is adopted";
    suite.case(case, LIMIT * 2, sandbox_without_answer(&dir(suite)?)).await;
    let case = "answers that lie are refused and the agent goes on";
    suite.case(case, LIMIT * 3, lies(&dir(suite)?)).await;
    let case = "an event stream that is cut is opened again";
    suite.case(case, LIMIT * 2, cut_events(&dir(suite)?)).await;
    lifecycle::run(suite, &mut dir).await?;
    let case = "tokens that cannot be renewed cost the runtime nothing and the log a line each";
    suite.case(case, LIMIT * 4, tokens_not_renewed(&dir(suite)?)).await;
    Ok(())
}

/// An agent between the two.
struct Stage {
    agent: Agent,
    api: FakeApi,
    cri: FakeCri,
}

const IMAGE: &str = keelson_tests::images::BUSYBOX;

impl Stage {
    async fn set(dir: &Path) -> Result<Self> {
        let api = FakeApi::start().await;
        Self::set_with(dir, api).await
    }

    async fn set_with(dir: &Path, api: FakeApi) -> Result<Self> {
        let cri = FakeCri::start(&dir.join("cri.sock"))?;
        cri.add_image(IMAGE);
        let options = Options {
            node: "node".into(),
            runtime_endpoint: cri.endpoint(),
            kubeconfig: Some(api.kubeconfig(dir)),
            client_ca: None,
            serving: None,
            config: json!({"runtimeRequestTimeout": "3s", "authentication": {"webhook": {"enabled": false}},
                           "authorization": {"mode": "AlwaysAllow"}}),
            flags: vec![],
        };
        let agent = Agent::start(dir, options).await?;
        Ok(Self { agent, api, cri })
    }

    fn bind(&self, name: &str) -> Value {
        self.api.put("pods", &quiet(name))
    }

    fn ready(&self, name: &str) -> bool {
        self.api.get("pods", "default", name).is_some_and(|p| {
            p["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|c| c["type"] == "Ready" && c["status"] == "True")
        })
    }

    async fn wait_ready(&self, name: &str) -> Result<()> {
        until_true(&format!("{name} is Ready"), LIMIT, async || Ok(self.ready(name))).await.with_context(
            || {
                let status =
                    self.api.get("pods", "default", name).map(|p| p["status"].clone()).unwrap_or_default();
                format!("its status is {status}")
            },
        )
    }

    async fn wait_gone(&self, name: &str) -> Result<()> {
        let what = format!("{name} is gone");
        until_true(&what, LIMIT, async || Ok(self.api.get("pods", "default", name).is_none())).await
    }
}

/// A pod that asks the apiserver for nothing.
fn quiet(name: &str) -> Value {
    let mut pod = pod(name, "node", json!([sleeper("main")]));
    pod["metadata"]["namespace"] = json!("default");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["enableServiceLinks"] = json!(false);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod
}

async fn bad_watches(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.bind("first");
    stage.wait_ready("first").await?;
    for (n, fault) in [ApiFault::Gone, ApiFault::HalfLine, ApiFault::Status(500)].into_iter().enumerate() {
        let shown = format!("{fault:?}");
        stage.api.fault("watch", "pods", 1, fault);
        stage.api.close_watches();
        let name = format!("pod-{n}");
        stage.bind(&name);
        stage.wait_ready(&name).await.with_context(|| format!("after {shown}"))?;
    }
    // While its watch is closed a pod goes and the history with it: only a new list can show it.
    stage.api.fault("watch", "pods", 2, ApiFault::Status(503));
    stage.api.close_watches();
    stage.api.remove("pods", "default", "pod-0");
    stage.api.compact();
    // Four failures in a row have stretched the back-off by now.
    until_true("the removed pod's sandbox is gone", LIMIT * 3, async || {
        let names =
            stage.cri.sandbox_ids().into_iter().filter_map(|id| stage.cri.sandbox_config(&id)?.metadata);
        Ok(!names.into_iter().any(|m| m.name == "pod-0"))
    })
    .await?;
    stage.wait_ready("first").await
}

async fn bad_patches(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    let faults = [
        ApiFault::Busy(1),
        ApiFault::Status(409),
        ApiFault::Status(500),
        ApiFault::LostAnswer,
        ApiFault::Status(504),
    ];
    for (n, fault) in faults.into_iter().enumerate() {
        let shown = format!("{fault:?}");
        let name = format!("pod-{n}");
        stage.api.fault("patch", "pods/status", 2, fault);
        stage.bind(&name);
        stage.wait_ready(&name).await.with_context(|| format!("after {shown}"))?;
        stage.api.clear_faults();
    }
    stage.api.fault("delete", "pods", 2, ApiFault::Status(500));
    stage.api.delete_gracefully("default", "pod-0", 1);
    stage.wait_gone("pod-0").await
}

async fn comes_and_goes(dir: &Path) -> Result<()> {
    let mut api = FakeApi::start().await;
    api.put("pods", &quiet("early"));
    api.stop().await;
    let mut stage =
        Stage::set_with(dir, api).await.context("without an apiserver the agent does not get ready")?;
    stage.agent.check_alive()?;
    stage.api.start_again().await;
    stage.wait_ready("early").await?;
    stage.api.stop().await;
    stage.api.remove("pods", "default", "early");
    stage.api.put("pods", &quiet("late"));
    stage.api.start_again().await;
    stage.wait_ready("late").await?;
    until_true("what went meanwhile is gone", LIMIT, async || Ok(stage.cri.sandbox_ids().len() == 1)).await
}

async fn node_object(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    let change = async |change: fn(&mut Value)| {
        let registered = async || Ok(stage.api.get("nodes", "", "node"));
        let mut node = keelson_tests::wait::until("the node is registered", LIMIT, registered).await?;
        change(&mut node);
        stage.api.put("nodes", &node);
        anyhow::Ok(())
    };
    change(|node| node["spec"]["podCIDRs"] = json!(["10.1.2.0/24", "fd00:1::/64"])).await?;
    until_true("the runtime knows the ranges", LIMIT, async || {
        Ok(stage.cri.pod_ranges() == "10.1.2.0/24,fd00:1::/64")
    })
    .await?;
    stage.api.fault("get", "nodes", 1, ApiFault::Status(500));
    let mut choosy = quiet("choosy");
    choosy["spec"]["nodeSelector"] = json!({"disk": "fast"});
    stage.api.put("pods", &choosy);
    stage.api.until(|api| api.requests("get", "nodes") > 0).await;
    change(|node| node["metadata"]["labels"]["disk"] = json!("fast")).await?;
    stage.wait_ready("choosy").await
}

async fn one_pod_hangs(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.bind("before");
    stage.wait_ready("before").await?;
    stage.cri.fault(Rpc::RunPodSandbox, Fault::Hang);
    stage.bind("stuck");
    until_true("its sandbox is asked for", LIMIT, async || Ok(stage.cri.calls(Rpc::RunPodSandbox) >= 2))
        .await?;
    // Meanwhile another pod is ended and deleted as if nothing was.
    stage.api.delete_gracefully("default", "before", 1);
    stage.wait_gone("before").await?;
    ensure!(!stage.ready("stuck"));
    stage.cri.clear();
    stage.wait_ready("stuck").await
}

async fn sandbox_without_answer(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.cri.fault(Rpc::RunPodSandbox, Fault::HangAfter);
    stage.bind("adopted");
    until_true("the call has timed out", LIMIT, async || {
        Ok(stage.agent.log().to_lowercase().contains("adopted"))
    })
    .await?;
    until_true("the sandbox is made", LIMIT, async || Ok(stage.cri.sandbox_ids().len() == 1)).await?;
    stage.wait_ready("adopted").await?;
    ensure!(stage.cri.sandbox_ids().len() == 1, "there are {} sandboxes", stage.cri.sandbox_ids().len());
    Ok(())
}

async fn lies(dir: &Path) -> Result<()> {
    let mut stage = Stage::set(dir).await?;
    stage.bind("honest");
    stage.wait_ready("honest").await?;
    let lies = [
        (Rpc::ListPodSandbox, Lie::EmptyId),
        (Rpc::ListPodSandbox, Lie::HostileUid),
        (Rpc::ListContainers, Lie::UnknownState),
        (Rpc::ContainerStatus, Lie::LogPath),
        (Rpc::RunPodSandbox, Lie::EmptyId),
        (Rpc::CreateContainer, Lie::EmptyId),
    ];
    for (n, (rpc, lie)) in lies.into_iter().enumerate() {
        let name = format!("lie-{n}");
        let before = stage.cri.calls(rpc);
        stage.cri.fault(rpc, Fault::Lie(lie));
        if rpc == Rpc::ContainerStatus {
            // What an event says of a container is not asked for any more.
            stage.cri.fault(Rpc::GetContainerEvents, Fault::Error(Code::Unavailable, "no events".into()));
        }
        stage.cri.cut_events();
        stage.bind(&name);
        until_true(&format!("{rpc:?} lied"), LIMIT, async || Ok(stage.cri.calls(rpc) > before)).await?;
        stage.agent.check_alive()?;
        stage.cri.clear();
        stage.wait_ready(&name).await.with_context(|| format!("after {rpc:?} answered {lie:?}"))?;
    }
    let outside = dir.parent().context("no parent")?;
    ensure!(!outside.join("escape").exists(), "a hostile uid left its directory");
    stage.wait_ready("honest").await?;
    // Refused outright is refused in the status too, and tried again.
    stage.cri.fault(Rpc::CreateContainer, Fault::Error(Code::InvalidArgument, "no such thing".into()));
    stage.bind("refused");
    until_true("the status says why", LIMIT, async || {
        let status =
            stage.api.get("pods", "default", "refused").map(|p| p["status"].to_string()).unwrap_or_default();
        Ok(status.contains("CreateContainerError") && status.contains("no such thing"))
    })
    .await?;
    stage.cri.clear();
    stage.wait_ready("refused").await
}

async fn cut_events(dir: &Path) -> Result<()> {
    let mut stage = Stage::set(dir).await?;
    stage.bind("watched");
    stage.wait_ready("watched").await?;
    stage.cri.cut_events();
    let first = stage.cri.container_ids("main");
    let first = first.first().context("no container")?;
    ensure!(stage.cri.exit_container(first, 1), "the container did not run");
    until_true("it was restarted", LIMIT, async || {
        let restarts = stage
            .api
            .get("pods", "default", "watched")
            .map(|p| p["status"]["containerStatuses"][0]["restartCount"].clone());
        Ok(stage.ready("watched") && restarts == Some(json!(1)))
    })
    .await?;
    stage.cri.restart()?;
    stage.bind("after-restart");
    stage.wait_ready("after-restart").await?;
    stage.agent.check_alive()
}

/// Thirty pods whose tokens are due as soon as they are there, as on a node whose clock is ahead, and an apiserver that
/// renews none of them.
async fn tokens_not_renewed(dir: &Path) -> Result<()> {
    const PODS: usize = 30;
    let mut stage = Stage::set(dir).await?;
    // The survey, and the two comparisons that come with a start: the second would have every pod observed once more.
    let lists = async || Ok(stage.cri.calls(Rpc::ListPodSandbox) >= 3);
    until_true("the next comparison is minutes away", LIMIT, lists).await?;
    stage.api.tokens_of_an_earlier_hour();
    let name = |n: usize| format!("pod-{n}");
    for n in 0..PODS {
        let mut with_token = quiet(&name(n));
        with_token["spec"]["volumes"] = json!([{"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}}]);
        stage.api.put("pods", &with_token);
    }
    for n in 0..PODS {
        stage.wait_ready(&name(n)).await?;
    }
    stage.api.fault("create", "serviceaccounts/token", usize::MAX, ApiFault::Status(503));
    let requests = || stage.api.requests("create", "serviceaccounts/token");
    let asked = requests();
    // The first round lets what comes with a pod's start pass. Then each is tried again, at growing intervals.
    let tried = async |rounds: usize| {
        until_true("renewals are tried again", LIMIT * 2, async || Ok(requests() >= asked + rounds * PODS))
            .await
    };
    tried(1).await?;
    let calls = || {
        let watched = [Rpc::ListPodSandbox, Rpc::ListContainers, Rpc::PodSandboxStatus, Rpc::ContainerStatus];
        watched.map(|rpc| stage.cri.calls(rpc))
    };
    let before = calls();
    tried(3).await?;
    let after = calls();
    let observed: usize = after.iter().zip(before).map(|(after, before)| after - before).sum();
    ensure!(
        observed < PODS,
        "pods to which nothing happened were looked at: {before:?}, then {after:?} calls"
    );
    let log = stage.agent.log();
    let lines = log.lines().filter(|line| line.contains("token not renewed")).count();
    ensure!((1..=PODS).contains(&lines), "{lines} lines about {PODS} tokens");
    ensure!((0..PODS).all(|n| stage.ready(&name(n))), "a pod is not ready any more");
    stage.api.clear_faults();
    stage.agent.check_alive()
}
