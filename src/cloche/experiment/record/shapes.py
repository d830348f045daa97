"""The shapes of Harbor's files, as it writes them in release 0.26 (github.com/harbor-framework/harbor).

Field names, their order and their defaults are Harbor's; an unknown key is an error in both directions,
so that nothing of ours slips in. Must never get a field that Harbor's own models do not have.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Strict: no unknown keys, no silent conversion of types, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


Policy = Literal["auto", "limit", "request", "guarantee", "ignore"]


class TaskConfig(Shape):
    """Which task."""

    path: str | None = None
    git_url: str | None = None
    git_commit_id: str | None = None
    name: str | None = None
    ref: str | None = None
    overwrite: bool = False
    download_dir: str | None = None
    source: str | None = None


class AgentConfig(Shape):
    """Which agent, with which model."""

    name: str | None = None
    import_path: str | None = None
    model_name: str | None = None
    base_url: str | None = None
    model_api_key_name: str | None = None
    model_api_format: str | None = None
    skip_model_parsing: bool = True
    n_concurrent: int | None = None
    concurrency_group: str | None = None
    skills: list[str] = Field(default_factory=list)
    override_timeout_sec: float | None = None
    override_setup_timeout_sec: float | None = None
    max_timeout_sec: float | None = None
    resume_trajectory: bool = False
    load_trajectory: str | None = None
    extra_allowed_hosts: list[str] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)


class EnvironmentConfig(Shape):
    """Which environment; ours goes by ``import_path``, since Harbor's list of types is closed."""

    type: str | None = None
    import_path: str | None = None
    force_build: bool = False
    delete: bool = True
    stream: bool = False
    cpu_enforcement_policy: Policy = "limit"
    memory_enforcement_policy: Policy = "limit"
    override_cpus: float | None = None
    override_memory_mb: int | None = None
    override_storage_mb: int | None = None
    override_gpus: int | None = None
    override_tpu: dict[str, Any] | None = None
    mounts: list[dict[str, Any]] | None = None
    extra_docker_compose: list[str] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    extra_allowed_hosts: list[str] = Field(default_factory=list)


class VerifierConfig(Shape):
    """How the task is graded."""

    override_timeout_sec: float | None = None
    max_timeout_sec: float | None = None
    disable: bool = False


class VerifierLock(VerifierConfig):
    """The same with the mode that held."""

    environment_mode: Literal["shared", "separate"] | None = None


class _Multipliers(Shape):
    timeout_multiplier: float = 1.0
    agent_timeout_multiplier: float | None = None
    verifier_timeout_multiplier: float | None = None
    agent_setup_timeout_multiplier: float | None = None
    environment_build_timeout_multiplier: float | None = None


class TrialConfig(_Multipliers):
    """``<trial>/config.json``."""

    schema_version: Literal[1] = 1
    task: TaskConfig
    trial_name: str
    trials_dir: str
    install_only: bool = False
    agent: AgentConfig
    user_agent: None = None
    environment: EnvironmentConfig
    verifier: VerifierConfig
    override_error_policy: dict[str, Any] = Field(default_factory=dict)
    artifacts: list[str] = Field(default_factory=list)
    extra_instruction_paths: list[str] = Field(default_factory=list)
    extra_instructions: list[str] = Field(default_factory=list)
    job_id: UUID | None = None
    source_trial: None = None


class RetryConfig(Shape):
    """When Harbor's names are tried again."""

    max_retries: int = 0
    include_exceptions: list[str] | None = None
    exclude_exceptions: list[str] | None = None
    wait_multiplier: float = 1.0
    min_wait_sec: float = 1.0
    max_wait_sec: float = 60.0


class JobConfig(_Multipliers):
    """``config.json`` of the job."""

    schema_version: Literal[1] = 1
    job_name: str
    jobs_dir: str
    n_attempts: int = 1
    install_only: bool = False
    skip_credential_checks: bool = False
    debug: bool = False
    n_concurrent_trials: int
    quiet: bool = False
    retry: RetryConfig
    override_error_policy: dict[str, Any] = Field(default_factory=dict)
    environment: EnvironmentConfig
    verifier: VerifierConfig
    metrics: list[dict[str, Any]] = Field(default_factory=list)
    agents: list[AgentConfig]
    user_agent: None = None
    datasets: list[dict[str, Any]] = Field(default_factory=list)
    tasks: list[TaskConfig]
    artifacts: list[str] = Field(default_factory=list)
    extra_instruction_paths: list[str] = Field(default_factory=list)
    extra_instructions: list[str] = Field(default_factory=list)
    source_jobs: list[dict[str, Any]] = Field(default_factory=list)


class TaskLock(Shape):
    """Which task exactly: ``digest`` covers all files that make it."""

    name: str
    version: str | None = None
    type: Literal["local", "git", "package"] = "local"
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    source: str | None = None
    path: str | None = None
    git_url: str | None = None
    git_commit_id: str | None = None


class TrialLock(_Multipliers):
    """``<trial>/lock.json``."""

    schema_version: Literal[2] = 2
    task: TaskLock
    install_only: bool = False
    extra_instructions: None = None
    agent: AgentConfig
    user_agent: None = None
    user_persona: None = None
    user_prompt_template: None = None
    bridge_prompt: None = None
    bridge_inputs: dict[str, Any] = Field(default_factory=dict)
    skills: list[dict[str, Any]] = Field(default_factory=list)
    environment: EnvironmentConfig
    extra_docker_compose: None = None
    verifier: VerifierLock
    artifacts: list[str] = Field(default_factory=list)
    override_error_policy: dict[str, Any] = Field(default_factory=dict)
    source_trial: None = None


class HarborInfo(Shape):
    """Which Harbor wrote it: none did."""

    version: str | None = None
    git_commit_hash: str | None = None
    is_editable: bool | None = None


class JobLock(Shape):
    """``lock.json`` of the job."""

    schema_version: Literal[3] = 3
    created_at: datetime
    harbor: HarborInfo = Field(default_factory=HarborInfo)
    n_concurrent_trials: int
    retry: RetryConfig
    trials: list[TrialLock]


class Timing(Shape):
    """When a phase began and ended."""

    started_at: datetime | None = None
    finished_at: datetime | None = None


class ErrorPolicy(Shape):
    """What a failure's name means to Harbor."""

    should_retry: bool
    should_grade: bool
    has_valid_reward: bool


class ExceptionInfo(Shape):
    """Why a trial failed. Harbor derives ``policy`` from the type, unless ``policy_override`` is there."""

    exception_type: str
    exception_message: str
    exception_traceback: str
    occurred_at: datetime
    policy_override: ErrorPolicy | None = None
    policy: ErrorPolicy


class ModelInfo(Shape):
    """Which model."""

    name: str
    provider: str | None = None


class AgentInfo(Shape):
    """Which agent, of which version."""

    name: str
    version: str
    model_info: ModelInfo | None = None


class ModelUsage(Shape):
    """Tokens of one model."""

    n_input_tokens: int = 0
    n_cache_tokens: int = 0
    n_output_tokens: int = 0
    cost_usd: float | None = None


class AgentResult(Shape):
    """What the agent used; ``n_input_tokens`` include the cached ones."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None
    model_usage: dict[str, ModelUsage] | None = None
    rollout_details: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class VerifierResult(Shape):
    """The rewards."""

    rewards: dict[str, float | int] | None = None


class LocalTaskId(Shape):
    """A task in a folder."""

    path: str


class StepResult(Shape):
    """What one step of a task in steps came to."""

    step_name: str
    agent_result: AgentResult | None = None
    verifier_result: VerifierResult | None = None
    exception_info: ExceptionInfo | None = None
    agent_execution: Timing | None = None
    verifier: Timing | None = None


class TrialResult(Shape):
    """``<trial>/result.json``."""

    schema_version: Literal[1] = 1
    id: UUID
    task_name: str
    trial_name: str
    trial_uri: str
    task_id: LocalTaskId
    source: str | None = None
    task_checksum: str
    config: TrialConfig
    agent_info: AgentInfo
    agent_result: AgentResult | None = None
    verifier_result: VerifierResult | None = None
    verifier_environment_mode: Literal["shared", "separate"] | None = None
    exception_info: ExceptionInfo | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    environment_setup: Timing | None = None
    agent_setup: Timing | None = None
    agent_execution: Timing | None = None
    verifier: Timing | None = None
    step_results: list[StepResult] | None = None
    reward_valid: bool


class EvalStats(Shape):
    """Figures of one agent with one model on one dataset."""

    n_trials: int = 0
    n_errors: int = 0
    metrics: list[dict[str, float]] = Field(default_factory=list)
    pass_at_k: dict[str, float] = Field(default_factory=dict)
    reward_stats: dict[str, dict[str, list[str]]] = Field(default_factory=dict)
    exception_stats: dict[str, list[str]] = Field(default_factory=dict)


class JobStats(Shape):
    """Figures of the whole job."""

    n_completed_trials: int = 0
    n_errored_trials: int = 0
    n_running_trials: int = 0
    n_pending_trials: int = 0
    n_cancelled_trials: int = 0
    n_retries: int = 0
    evals: dict[str, EvalStats] = Field(default_factory=dict)
    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


class JobResult(Shape):
    """``result.json`` of the job."""

    schema_version: Literal[1] = 1
    id: UUID
    started_at: datetime
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    n_total_trials: int
    stats: JobStats


class ArtifactEntry(Shape):
    """One row of ``artifacts/manifest.json``."""

    source: str
    destination: str
    type: Literal["file", "directory"]
    status: Literal["ok", "failed", "empty", "skipped"]
    service: str | None = None
    exclude: list[str] | None = None
