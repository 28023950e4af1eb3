//! Processes that are killed or stopped at random instants, or both of them at random steps. Which end is right depends on
//! what each process had done by then.

use super::faults::{SOURCE, TARGET};
use super::log::{What, Who};
use super::role::{Act, Plan};
use super::scene::{Fate, LARGE, News, Process, SHORT, Scene, plan};
use ironwarp_engine::hand_over::{SourceStep, TargetStep};
use ironwarp_testkit::control::Random;
use ironwarp_testkit::long_form;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::time::Duration;

/// Number of random cases of each kind.
fn cases() -> u64 {
    if long_form::is_requested() { 400 } else { 12 }
}

/// What is known of a process.
#[derive(Debug, Default)]
struct State {
    result: Option<String>,
    is_stopped: bool,
    is_dead: bool,
}

impl State {
    /// Whether nothing more will come from the process unless it is continued.
    fn is_silent(&self) -> bool {
        self.result.is_some() || self.is_stopped || self.is_dead
    }

    fn note(&mut self, process: &Process, news: News) {
        match news {
            News::At => {
                self.is_stopped = process.is_stopped();
                self.is_dead = !self.is_stopped;
            }
            News::Result(text) => self.result = Some(text),
            News::End => self.is_dead = true,
        }
    }

    fn go_on(&mut self, process: &Process) {
        process.go_on();
        self.is_stopped = false;
    }

    fn is_err(&self) -> bool {
        self.result.as_ref().is_some_and(|text| text.starts_with("err"))
    }

    fn is_ok(&self) -> bool {
        self.result.as_ref().is_some_and(|text| text.starts_with("ok"))
    }
}

/// Waits until both processes are done or dead. Continues those that are stopped after random times, in random order.
fn settle(scene: &Scene, source: &mut State, target: &mut State, random: &mut Random) {
    while !(source.is_silent() && target.is_silent()) || source.is_stopped || target.is_stopped {
        let quiet = random.below(2 * u64::try_from(SHORT.as_millis()).unwrap());
        // If nobody is stopped, there is nothing to do but to wait.
        let is_stopped = source.is_stopped || target.is_stopped;
        let timeout = if is_stopped { Duration::from_millis(quiet) } else { super::TIMEOUT };
        let listen = |state: &State| if state.is_silent() { PollFlags::empty() } else { PollFlags::IN };
        let mut both =
            [PollFd::new(&scene.source, listen(source)), PollFd::new(&scene.target, listen(target))];
        let count = poll(&mut both, Some(&Timespec::try_from(timeout).unwrap())).unwrap();
        let [of_source, of_target] = both.map(|it| it.revents().contains(PollFlags::IN));
        if of_source {
            source.note(&scene.source, scene.source.news());
        }
        if of_target {
            target.note(&scene.target, scene.target.news());
        }
        if !of_source && !of_target {
            assert!(is_stopped || count > 0, "{}: {source:?}, {target:?}", scene.context);
            if source.is_stopped && (!target.is_stopped || random.below(2) == 0) {
                source.go_on(&scene.source);
            } else if target.is_stopped {
                target.go_on(&scene.target);
            }
        }
    }
}

/// Checks that the end is right.
fn judge(scene: Scene, source: &State, target: &State) -> Fate {
    let context = format!("{}: {source:?}, {target:?}", scene.context);
    let keeps = source.is_err() && !source.is_dead;
    let has_taken = target.is_ok() && !target.is_dead;
    let fate = match (keeps, has_taken) {
        (true, true) => panic!("two owners: {context}"),
        (true, false) => Fate::Source,
        (false, true) => Fate::Target,
        (false, false) => {
            // Only with its owner is a function lost. A target that lives must have it, unless the source never offered
            // it, or took it back.
            let records = scene.log.records();
            let is_offered = records.contains(&(Who::Source, What::Offered));
            let is_revoked = source.is_err() || records.contains(&(Who::Source, What::Refused));
            let legitimate = target.is_dead || source.is_dead && (!is_offered || is_revoked);
            assert!(legitimate, "lost: {context}");
            Fate::Lost
        }
    };
    scene.ends_at(fate);
    fate
}

/// Runs a hand-over, and does something to one of the processes after a random time.
fn at_an_instant(act: Act, random: &mut Random) -> Fate {
    let len = if random.below(2) == 0 { LARGE } else { plan().len };
    let source_plan = Plan { len, pause: SHORT, ..plan() };
    let scene = Scene::prepare(&source_plan, &Plan { len, ..plan() });
    let is_source = random.below(2) == 0;
    let victim = if is_source { &scene.source } else { &scene.target };
    let (mut source, mut target) = (State::default(), State::default());
    scene.go();
    // The random instant: a hand-over takes less than a millisecond if the processors are idle.
    let longest = [300, 1_000, 4_000][usize::try_from(random.below(3)).unwrap()];
    std::thread::sleep(Duration::from_micros(random.below(longest)));
    let state = if is_source { &mut source } else { &mut target };
    match act {
        Act::Kill => {
            victim.kill();
            // It may have had a result before.
            while !state.is_dead {
                state.note(victim, victim.news());
            }
        }
        Act::Stop => {
            victim.signal(Signal::STOP);
            state.is_stopped = true;
        }
    }
    settle(&scene, &mut source, &mut target, random);
    judge(scene, &source, &target)
}

fn at_instants(act: Act) {
    let mut random = Random(u64::from(std::process::id()));
    let mut fates = Vec::new();
    for _ in 0..cases() {
        let seed = random.0;
        println!("seed {seed}"); // shown if the test fails
        fates.push(at_an_instant(act, &mut random));
    }
    let count = |fate| fates.iter().filter(|it| **it == fate).count();
    println!(
        "{act:?}: the source kept it {} times, the target got it {} times, lost {} times",
        count(Fate::Source),
        count(Fate::Target),
        count(Fate::Lost)
    );
}

#[test]
fn a_process_that_is_killed_at_any_instant_leaves_one_owner_or_took_the_function_along() {
    at_instants(Act::Kill);
}

#[test]
fn a_process_that_is_stopped_at_any_instant_makes_no_second_owner() {
    at_instants(Act::Stop);
}

/// Both processes are stopped or killed, each after one of its steps; also steps that only a source has that gives up.
#[test]
fn faults_of_both_processes_make_no_second_owner() {
    let more = [SourceStep::GivingUp, SourceStep::Decided, SourceStep::Refused];
    let source_steps: Vec<_> = SOURCE.iter().map(|it| it.0).chain(more).collect();
    let target_steps: Vec<_> =
        TARGET.iter().map(|it| it.0).chain([TargetStep::TakenFailed, TargetStep::Waiting]).collect();
    let acts = [Act::Kill, Act::Stop];
    let mut random = Random(u64::from(std::process::id()));
    let mut all = Vec::new();
    for source in &source_steps {
        for target in &target_steps {
            all.extend(acts.iter().flat_map(|one| acts.map(|other| (*source, *one, *target, other))));
        }
    }
    // In random order, so that the short form does others each time.
    for at in (1..all.len()).rev() {
        all.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
    }
    let some = if long_form::is_requested() { all.len() } else { 12 };
    for (source_step, source_act, target_step, target_act) in all.into_iter().take(some) {
        let source_plan = Plan { pause: SHORT, ..plan() }.at(source_step, source_act);
        let scene = Scene::start(&source_plan, &plan().at(target_step, target_act));
        let (mut source, mut target) = (State::default(), State::default());
        settle(&scene, &mut source, &mut target, &mut random);
        judge(scene, &source, &target);
    }
}
