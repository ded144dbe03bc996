//! Against a runtime that hangs and fails on demand.

use std::path::Path;
use std::time::Duration;

use keelson_core::config::{ConfigInput, ConfigText, load};
use keelson_core::ids::PodUid;
use keelson_fakes::cri::{FakeCri, Fault, Rpc};
use tempfile::TempDir;
use tonic::Code;

use super::*;

struct Bench {
    fake: FakeCri,
    images: Images,
    dir: TempDir,
}

fn bench(config: &str) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeCri::start(&dir.path().join("cri.sock")).unwrap();
    let images = images(&fake, dir.path(), config);
    Bench { fake, images, dir }
}

fn images(fake: &FakeCri, dir: &Path, config: &str) -> Images {
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let text = ConfigText { name: "config".into(), text: format!("{head}{config}") };
    let mut input = ConfigInput { config: Some(text), hostname: "node".into(), ..ConfigInput::default() };
    input.node.root_dir = Some(dir.to_owned());
    let runtime = Runtime::connect(&fake.endpoint(), None, Duration::from_secs(60)).unwrap();
    Images::new(runtime, &load(&input).unwrap(), None)
}

impl Bench {
    async fn ensure(&self, image: &str, policy: &str) -> Result<Vec<&'static str>, ImageFailure> {
        let pod = PodIdentity {
            namespace: "a".into(),
            name: "p".into(),
            uid: PodUid::try_from("uid").unwrap(),
            service_account: None,
            secrets: vec![],
        };
        let mut seen = vec![];
        let wanted = Wanted { image, policy, pod, sandbox: &PodSandboxConfig::default() };
        let done = self.images.ensure(wanted, |progress| {
            seen.push(match progress {
                Progress::AlreadyPresent { checked: true } => "checked",
                Progress::AlreadyPresent { checked: false } => "present",
                Progress::NoCredentials { .. } => "no credentials",
                Progress::Pulling => "pulling",
                Progress::Pulled { .. } => "pulled",
            });
        });
        done.await?;
        Ok(seen)
    }

    fn intents(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("image_manager/pulling")).map_or(0, Iterator::count)
    }

    /// Lets the others run until so many pulls have reached the runtime.
    async fn pulls(&self, count: usize) {
        while self.fake.calls(Rpc::PullImage) < count {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn as_many_pulls_as_configured_are_under_way_and_one_given_up_makes_room() {
    for (config, at_once) in
        [("serializeImagePulls: true", 1), ("maxParallelImagePulls: 2", 2), ("serializeImagePulls: false", 3)]
    {
        let bench = bench(config);
        bench.fake.fault(Rpc::PullImage, Fault::Hang);
        let mut pulls: Vec<_> =
            ["a:1", "b:1", "c:1"].map(|image| Box::pin(bench.ensure(image, "IfNotPresent"))).into();
        let mut all = std::pin::pin!(async {
            for pull in &mut pulls {
                assert!(futures::poll!(pull.as_mut()).is_pending());
            }
            loop {
                for pull in &mut pulls {
                    assert!(futures::poll!(pull.as_mut()).is_pending());
                }
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            () = &mut all => {}
            () = bench.pulls(at_once) => {}
        }
        // Those that may not pull yet have got as far as they will: what they do before is done, and they wait for a place.
        let free = bench.images.0.slots.as_ref().map(Semaphore::available_permits);
        assert!(free.is_none_or(|free| free == 0), "{config}");
        assert_eq!(bench.fake.calls(Rpc::PullImage), at_once, "{config}");
    }
    let bench = bench("serializeImagePulls: true");
    bench.fake.fault(Rpc::PullImage, Fault::Hang);
    tokio::select! {
        done = bench.ensure("a:1", "IfNotPresent") => panic!("{done:?}"),
        () = bench.pulls(1) => {}
    }
    bench.fake.clear();
    assert_eq!(bench.ensure("b:1", "IfNotPresent").await.unwrap(), ["pulling", "pulled"]);
}

#[tokio::test]
async fn a_pull_too_many_is_refused_in_the_kubelets_words_and_leaves_no_trace() {
    let bench = bench("registryPullQPS: 1\nregistryBurst: 1");
    let mut count = 0;
    let failure = loop {
        count += 1;
        if let Err(failure) = bench.ensure(&format!("x{count}:1"), "IfNotPresent").await {
            break failure;
        }
    };
    assert_eq!((failure.reason(), &*failure.message()), ("ErrImagePull", "pull QPS exceeded"));
    let event = failure.event();
    assert_eq!(event.message, format!("Failed to pull image \"x{count}:1\": pull QPS exceeded"));
    assert_eq!(bench.intents(), 0);
    assert_eq!(bench.fake.calls(Rpc::PullImage), count - 1, "the runtime was not asked");
}

#[tokio::test]
async fn what_was_pulled_without_credentials_is_everybodys_and_what_was_there_is_too() {
    let bench = bench("");
    bench.fake.add_image("preloaded:1");
    assert_eq!(bench.ensure("preloaded:1", "IfNotPresent").await.unwrap(), ["checked"]);
    assert_eq!(bench.ensure("x:1", "IfNotPresent").await.unwrap(), ["pulling", "pulled"]);
    assert_eq!(bench.ensure("x:1", "IfNotPresent").await.unwrap(), ["checked"]);
    assert_eq!(bench.ensure("x:1", "Never").await.unwrap(), ["checked"]);
    assert_eq!(bench.ensure("x:1", "Always").await.unwrap(), ["pulling", "pulled"]);
    let next = images(&bench.fake, bench.dir.path(), "imagePullCredentialsVerificationPolicy: AlwaysVerify");
    let bench = Bench { images: next, ..bench };
    assert_eq!(bench.ensure("x:1", "Never").await.unwrap(), ["checked"], "the next agent knows");
    let failure = bench.ensure("preloaded:1", "Never").await.unwrap_err();
    assert_eq!(failure.reason(), "ErrImageNeverPull", "nobody has shown that this is theirs");
    let off = "featureGates: {KubeletEnsureSecretPulledImages: false}";
    let bench = Bench { images: images(&bench.fake, bench.dir.path(), off), ..bench };
    assert_eq!(bench.ensure("preloaded:1", "Never").await.unwrap(), ["present"]);
}

#[tokio::test]
async fn an_image_whose_pull_nobody_saw_the_end_of_does_not_count_as_one_that_was_there() {
    let mut bench = bench("");
    bench.fake.fault(Rpc::PullImage, Fault::HangAfter);
    tokio::select! {
        done = bench.ensure("x:1", "IfNotPresent") => panic!("{done:?}"),
        () = async { while bench.fake.images().is_empty() { tokio::task::yield_now().await } } => {}
    }
    assert_eq!(bench.intents(), 1);
    let failure = bench.ensure("x:1", "Never").await.unwrap_err();
    assert_eq!(failure.reason(), "ErrImageNeverPull", "given up by the pod");
    bench.images.settle_earlier_pulls().await;
    assert_eq!(bench.intents(), 0);
    let failure = bench.ensure("x:1", "Never").await.unwrap_err();
    assert_eq!(failure.reason(), "ErrImageNeverPull", "settled");

    bench.fake.fault(Rpc::PullImage, Fault::Error(Code::NotFound, "no such image".into()));
    assert_eq!(bench.ensure("x:1", "IfNotPresent").await.unwrap_err().message(), "no such image");
    assert_eq!(bench.intents(), 0, "the runtime said that there is nothing");
    bench.fake.fault(Rpc::PullImage, Fault::Hang);
    let asked = bench.fake.calls(Rpc::PullImage);
    let cut = {
        let mut pull = Box::pin(bench.ensure("x:1", "IfNotPresent"));
        tokio::select! {
            done = &mut pull => panic!("{done:?}"),
            () = bench.pulls(asked + 1) => {}
        }
        pull
    };
    drop(cut);
    bench.fake.clear();
    assert_eq!(bench.ensure("x:1", "IfNotPresent").await.unwrap(), ["pulling", "pulled"]);
    assert_eq!(bench.intents(), 0);
    bench.fake.stop();
    let failure = bench.ensure("y:1", "Always").await.unwrap_err();
    assert_eq!(failure.reason(), "ErrImagePull");
    assert_eq!(bench.intents(), 1, "nobody answered, so nobody knows");
}
