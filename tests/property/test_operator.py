"""Whatever order things happen and are seen in, and wherever the operator dies, it does nothing twice."""

from hypothesis import settings

from tests.property.operator_machine import OperatorMachine

TestOperator = OperatorMachine.TestCase
TestOperator.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
