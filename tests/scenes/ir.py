"""A kernel as a file of Triton's IR, which Triton 3.6 to 3.9 compile."""

SEVEN = """
module {
  tt.func public @seven(%0: !tt.ptr<i32>) {
    %1 = arith.constant 7 : i32
    tt.store %0, %1 : !tt.ptr<i32>
    tt.return
  }
}
"""
