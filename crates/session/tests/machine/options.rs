//! Options that change while an agent runs: each caller gets one answer, and what the agent agreed to is in force.

use crate::{
    given::{Given, asleep},
    world::USUAL,
};
use ash_model::LiveSetting;
use ash_session::machine::{
    AgentInputDeadline, ChangeFailure, Effect, NextStep, PendingChange, SandboxConnection, SessionClosing,
    SessionProfile, SettingOutcome, TurnTimeLimit, WaiterId,
};
use std::time::Duration;

const CALLER: WaiterId = WaiterId(1);

fn model() -> LiveSetting {
    LiveSetting::Model("m".into())
}

fn mode() -> LiveSetting {
    LiveSetting::PermissionMode("plan".into())
}

/// A caller wants both settings, and the agent was told the first one as input 2.
fn told() -> Given {
    let mut given = Given::live(&[]);
    let change = PendingChange { waiter: CALLER, settings: [model(), mode()].into(), told: None };
    given.machine.runtime.waiting.changes.push_back(change);
    assert_eq!(given.plan(0), NextStep::TellSetting { setting: model(), input: 2 });
    given.machine.told_setting(2, given.start);
    given
}

#[test]
fn an_agent_that_does_not_answer_a_setting_is_waited_for_ten_seconds() {
    let given = told();
    assert_eq!(given.due(), Some((10, NextStep::RefuseChange(ChangeFailure::AgentSilent))));
    let until = given.start + Duration::from_secs(10);
    let change = given.machine.runtime.waiting.changes.front().expect("it waits");
    assert_eq!(change.told, Some(AgentInputDeadline { input: 2, until }));
}

#[test]
fn settings_are_told_one_after_the_other_and_count_when_the_agent_agrees() {
    let mut given = told();
    assert_eq!(
        given.machine.setting_answered(1, false),
        SettingOutcome::Ignored,
        "an answer to another input"
    );
    assert_eq!(given.plan(0), NextStep::Wait);
    assert_eq!(given.machine.setting_answered(2, false), SettingOutcome::Agreed(model()));
    assert_eq!(given.plan(0), NextStep::TellSetting { setting: mode(), input: 2 });
    given.machine.told_setting(3, given.start);
    assert_eq!(given.machine.setting_answered(2, false), SettingOutcome::Ignored);
    assert_eq!(given.machine.setting_answered(3, false), SettingOutcome::Agreed(mode()));
    assert_eq!(given.plan(0), NextStep::ChangeOptions);
    assert_eq!((given.machine.take_change(), given.machine.take_change()), (Some(CALLER), None));
    assert_eq!(given.plan(0), NextStep::Wait);
}

#[test]
fn a_setting_that_the_agent_refuses_is_the_end_of_its_change() {
    let mut given = told();
    assert_eq!(given.machine.setting_answered(2, true), SettingOutcome::Refused(CALLER));
    assert_eq!(given.machine.setting_answered(2, true), SettingOutcome::Ignored, "its caller has its answer");
    assert_eq!(given.plan(0), NextStep::Wait);
}

#[test]
fn a_change_fails_when_the_agent_that_was_told_is_gone() {
    let mut given = told();
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(given.plan(0), NextStep::RefuseChange(ChangeFailure::AgentGone));
    given.machine.runtime.closing = Some(SessionClosing::shutdown(given.start, WaiterId(2)));
    assert_eq!(given.plan(0), NextStep::RefuseChange(ChangeFailure::Stopped));
}

#[test]
fn a_change_waits_for_an_agent_that_is_being_started_and_needs_none_that_sleeps() {
    let mut given = Given::live(&[asleep()]);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    let change = PendingChange { waiter: CALLER, settings: [model()].into(), told: None };
    given.machine.runtime.waiting.changes.push_back(change);
    assert_eq!(given.plan(0), NextStep::InspectTree, "it starts first");
    given.machine.runtime.effect = Some(Effect::Start { options_seen: 0 });
    assert_eq!(given.plan(0), NextStep::Wait);
    given.machine.runtime.effect = None;
    given.machine.log.apply(9, &ash_model::Fact::Paused);
    assert_eq!(given.plan(0), NextStep::ChangeOptions);
    given.machine.runtime.effect = Some(Effect::EndSandbox);
    assert_eq!(given.plan(0), NextStep::Wait);
}

#[test]
fn changed_options_are_in_force_at_once_with_their_limits() {
    let mut given = Given::live(&[]);
    given.machine.runtime.limits.bounds = TurnTimeLimit::Seconds(5);
    let profile = SessionProfile { client_key: true, idle_timeout: Some(Duration::from_secs(9)), ..USUAL };
    given.machine.options_changed(profile);
    assert_eq!(given.machine.runtime.profile, profile);
    assert_eq!(given.machine.runtime.limits.bounds, TurnTimeLimit::Unknown);
    assert_eq!(given.plan(0), NextStep::ReadLimits);
}
