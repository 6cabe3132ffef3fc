// Paints one picture through Pentimento's public gRPC API, with stubs that buf generated from the contracts.
//
//	go run . "a red circle on a white background" picture.png [address]
//
// PENTIMENTO_TOKEN in the environment is sent as the bearer token of a suite that asks for one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	imagev1 "example.com/pentimento-client/gen/pentimento/api/image/v1"
)

const defaultAddress = "127.0.0.1:50400"

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run . PROMPT PICTURE [ADDRESS]")
		os.Exit(2)
	}
	address := defaultAddress
	if len(os.Args) > 3 {
		address = os.Args[3]
	}
	if err := paint(os.Args[1], os.Args[2], address); err != nil {
		failure := status.Convert(err)
		fmt.Fprintf(os.Stderr, "failed: %s: %s\n", failure.Code(), failure.Message())
		os.Exit(1)
	}
}

// paint writes the picture of a prompt to a file. Leaving before the end cancels the request.
func paint(prompt, picture, address string) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if token := os.Getenv("PENTIMENTO_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}

	asked := &imagev1.ImageRequest{Prompt: prompt, Seed: proto.Uint64(0)}
	stream, err := imagev1.NewImageServiceClient(connection).Generate(ctx, &imagev1.GenerateRequest{Request: asked})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := tell(event, picture); err != nil {
			return err
		}
	}
}

// tell prints an event; the last one brings the picture.
func tell(event *imagev1.GenerateResponse, picture string) error {
	if accepted := event.GetAccepted(); accepted != nil {
		fmt.Println("accepted", accepted.GetRequestId())
	}
	if progress := event.GetProgress(); progress != nil {
		fmt.Printf("step %d of %d\n", progress.GetStep(), progress.GetStepCount())
	}
	if completed := event.GetCompleted(); completed != nil {
		if err := os.WriteFile(picture, completed.GetImage(), 0o644); err != nil {
			return err
		}
		fmt.Printf("completed %s: %dx%d\n", picture, completed.GetWidthPx(), completed.GetHeightPx())
	}
	return nil
}
